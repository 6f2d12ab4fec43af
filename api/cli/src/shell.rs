//! From words on our command line to the one line that the API takes. One word is a shell line and
//! goes as it is; several words are a program and its arguments, and each is quoted so that the
//! shell in the sandbox reads back exactly the words that were typed here.

/// Words that the shell would take as its own grammar when they stand first and unquoted.
const RESERVED: [&str; 16] = [
    "case", "do", "done", "elif", "else", "esac", "fi", "for", "if", "in", "then", "until",
    "while", "time", "function", "select",
];

/// The line to send for these words.
pub(crate) fn command_line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        several => several
            .iter()
            .map(|word| quote(word))
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// One word, quoted where the shell would otherwise read something into it. `=` counts as such: an
/// unquoted `A=b` in front would be an assignment, not a program's name.
pub(crate) fn quote(word: &str) -> String {
    let plain = !word.is_empty()
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_@%+:,./-".contains(&byte))
        && !RESERVED.contains(&word);
    if plain {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn one_word_is_a_shell_line() {
        assert_eq!(command_line(&words(&["cd src && make"])), "cd src && make");
    }

    #[test]
    fn several_words_are_quoted_only_where_needed() {
        assert_eq!(command_line(&words(&["ls", "-la", "a b"])), "ls -la 'a b'");
        assert_eq!(command_line(&words(&["echo", "it's"])), r"echo 'it'\''s'");
        assert_eq!(command_line(&words(&["A=b", ""])), "'A=b' ''");
        assert_eq!(command_line(&words(&["if", "$HOME"])), "'if' '$HOME'");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_shell_reads_back_the_same_words(
            list in proptest::collection::vec("[^\0]{0,12}", 1..6)
        ) {
            let mut argv = words(&["printf", "%s\\0"]);
            argv.extend(list.iter().cloned());
            let line = command_line(&argv);
            let output = Command::new("/bin/sh").arg("-c").arg(&line).output().expect("sh runs");
            let wanted: Vec<u8> = list.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
            prop_assert_eq!(output.stdout, wanted);
        }
    }
}
