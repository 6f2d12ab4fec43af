//! Programs that run other commands: what they run is followed.

use super::Reader;
use super::Stdin;
use crate::policy::text::Text;

/// A program that runs the words behind its own options and operands.
struct Wrapper {
    name: &'static str,
    /// Options whose value is the next word.
    with_value: &'static [&'static str],
    /// Operands before the command.
    operands: usize,
}

const fn wrapper(
    name: &'static str,
    with_value: &'static [&'static str],
    operands: usize,
) -> Wrapper {
    Wrapper {
        name,
        with_value,
        operands,
    }
}

/// Options of `strace` and `ltrace`.
const TRACE: &[&str] = &[
    "-e", "-o", "-p", "-s", "-u", "-E", "-a", "-b", "-I", "-O", "-P", "-S", "-X",
];

/// Options of `sudo`.
const SUDO: &[&str] = &[
    "-u",
    "-g",
    "-h",
    "-p",
    "-C",
    "-r",
    "-t",
    "-T",
    "-U",
    "-D",
    "-R",
    "--user",
    "--group",
    "--host",
    "--prompt",
    "--chdir",
    "--chroot",
    "--close-from",
    "--role",
    "--type",
];

/// Options of `xargs`.
const XARGS: &[&str] = &[
    "-I",
    "-n",
    "-P",
    "-L",
    "-s",
    "-d",
    "-a",
    "-E",
    "--max-args",
    "--max-procs",
];

const WRAPPERS: &[Wrapper] = &[
    wrapper("nohup", &[], 0),
    wrapper("setsid", &[], 0),
    wrapper("time", &["-f", "-o", "--format", "--output"], 0),
    wrapper("builtin", &[], 0),
    wrapper("exec", &["-a"], 0),
    wrapper("nice", &["-n", "--adjustment"], 0),
    wrapper("ionice", &["-c", "-n", "-p", "--class", "--classdata"], 0),
    wrapper("timeout", &["-k", "-s", "--kill-after", "--signal"], 1),
    wrapper(
        "stdbuf",
        &["-i", "-o", "-e", "--input", "--output", "--error"],
        0,
    ),
    wrapper("sudo", SUDO, 0),
    wrapper("doas", &["-u", "-C"], 0),
    wrapper("chroot", &["--userspec", "--groups"], 1),
    wrapper("unshare", &["-S", "-G", "-R", "-w", "--root", "--wd"], 0),
    wrapper("nsenter", &["-t", "-S", "-G", "--target"], 0),
    wrapper(
        "setpriv",
        &["--reuid", "--regid", "--groups", "--inh-caps"],
        0,
    ),
    wrapper("taskset", &[], 1),
    wrapper("chrt", &["-T", "-P", "-D"], 1),
    wrapper("prlimit", &["-p", "--pid"], 0),
    wrapper("flock", &["-w", "-E", "--timeout"], 1),
    wrapper("strace", TRACE, 0),
    wrapper("ltrace", TRACE, 0),
    wrapper("cgexec", &["-g"], 0),
    wrapper("systemd-run", &["-p", "-u", "--property", "--unit"], 0),
    wrapper("fakeroot", &["-l", "-s", "-i", "-b"], 0),
    wrapper("unbuffer", &[], 0),
    wrapper("setarch", &[], 1),
    wrapper("linux32", &[], 0),
    wrapper("linux64", &[], 0),
    wrapper("gosu", &[], 1),
    wrapper("su-exec", &[], 1),
    wrapper("tini", &["-p", "-e"], 0),
    wrapper("dumb-init", &["-r"], 0),
    wrapper("xvfb-run", &["-n", "-s", "-f", "-e", "-p", "-w"], 0),
    wrapper("busybox", &[], 0),
    wrapper("toybox", &[], 0),
    wrapper("xargs", XARGS, 0),
    wrapper("parallel", &["-j", "-a", "-n", "-I", "--jobs"], 0),
];

/// Shells, whose scripts are followed.
const SHELLS: &[&str] = &[
    "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "rbash", "yash",
];

impl Reader {
    /// Notes a command and follows what it runs.
    pub(super) fn follow(&mut self, words: &[Text], certain: bool, depth: usize, stdin: &Stdin) {
        if depth > super::DEPTH_MAX {
            return self.unparsed("commands within commands, deeper than are followed");
        }
        let Some((program, arguments)) = words.split_first() else {
            return;
        };
        if !self.run(words, certain) {
            return;
        }
        let Some(name) = program.file_name() else {
            return;
        };
        match name.as_str() {
            "eval" => self.script(&Text::joined(arguments), depth, stdin),
            "trap" => self.trap(arguments, depth),
            "alias" | "hash" | "enable" if !arguments.is_empty() => {
                self.unjudged("a name that is given another meaning");
            }
            "." | "source" => self.sourced(arguments),
            "env" => self.environment(arguments, certain, depth, stdin),
            "command" => self.plain_command(arguments, certain, depth, stdin),
            "find" => self.find(arguments, certain, depth),
            "watch" => self.watch(arguments, depth),
            "su" | "runuser" | "script" | "flock" if option_c(arguments).is_some() => {
                let script = option_c(arguments).cloned().unwrap_or_default();
                self.script(&script, depth, stdin);
            }
            shell if SHELLS.contains(&shell) => self.shell(arguments, depth, stdin),
            loader if loader.starts_with("ld-linux") || loader.starts_with("ld-musl") => {
                self.wrapped(
                    &wrapper("ld", &["--library-path"], 0),
                    arguments,
                    certain,
                    depth,
                    stdin,
                );
            }
            other => {
                if let Some(known) = WRAPPERS.iter().find(|wrapper| wrapper.name == other) {
                    self.wrapped(known, arguments, certain, depth, stdin);
                }
            }
        }
    }

    /// What stands behind a wrapper's options, assignments and operands.
    fn wrapped(
        &mut self,
        wrapper: &Wrapper,
        arguments: &[Text],
        certain: bool,
        depth: usize,
        stdin: &Stdin,
    ) {
        let mut rest = arguments;
        let mut operands = wrapper.operands;
        while let Some((word, behind)) = rest.split_first() {
            let text = word.known().unwrap_or_default();
            if text == "--" {
                rest = behind;
                let taken = operands.min(rest.len());
                rest = rest.get(taken..).unwrap_or_default();
                break;
            } else if wrapper.with_value.contains(&text.as_str()) {
                rest = behind.get(1..).unwrap_or_default();
            } else if text.starts_with('-') && text.len() > 1 {
                rest = behind;
                // An option that is not known may take the next word.
                if let Some(later) = behind.get(1..).filter(|later| !later.is_empty()) {
                    self.perhaps(wrapper, later, depth, stdin);
                }
            } else if is_assignment(&text) {
                rest = behind;
            } else if operands > 0 {
                operands -= 1;
                rest = behind;
            } else {
                break;
            }
        }
        self.inner(wrapper, rest, certain, depth, stdin);
    }

    fn perhaps(&mut self, wrapper: &Wrapper, words: &[Text], depth: usize, stdin: &Stdin) {
        self.inner(wrapper, words, false, depth, stdin);
        if wrapper.operands > 0 {
            let behind = words.get(wrapper.operands..).unwrap_or_default();
            self.inner(wrapper, behind, false, depth, stdin);
        }
    }

    fn inner(
        &mut self,
        wrapper: &Wrapper,
        words: &[Text],
        certain: bool,
        depth: usize,
        stdin: &Stdin,
    ) {
        if words.is_empty() {
            return;
        }
        let mut words = words.to_vec();
        let takes_more = matches!(wrapper.name, "xargs" | "parallel");
        if takes_more {
            words.push(Text::gap());
        }
        let stdin = if takes_more { &Stdin::Unknown } else { stdin };
        self.follow(&words, certain, depth + 1, stdin);
    }

    /// `env`: options, assignments, a command; or one word that it splits itself.
    fn environment(&mut self, arguments: &[Text], certain: bool, depth: usize, stdin: &Stdin) {
        let split = arguments.iter().enumerate().find_map(|(index, word)| {
            let text = word.with_gaps_as("${_}");
            let attached = text.strip_prefix("--split-string=");
            let attached = attached.or_else(|| text.strip_prefix("-S").filter(|it| !it.is_empty()));
            match attached {
                Some(text) => Some((Text::literal(text), index + 1)),
                None if text == "-S" || text == "--split-string" => {
                    Some((arguments.get(index + 1)?.clone(), index + 2))
                }
                None => None,
            }
        });
        if let Some((mut line, behind)) = split {
            for word in arguments.get(behind..).unwrap_or_default() {
                line.push(' ');
                line.append(word);
            }
            self.script(&line, depth, stdin);
        }
        let known = wrapper(
            "env",
            &["-u", "-C", "--unset", "--chdir", "-S", "--split-string"],
            0,
        );
        self.wrapped(&known, arguments, certain, depth, stdin);
    }

    /// `command`: with `-v` and `-V` it only tells.
    fn plain_command(&mut self, arguments: &[Text], certain: bool, depth: usize, stdin: &Stdin) {
        let tells = arguments
            .first()
            .and_then(Text::known)
            .is_some_and(|option| option == "-v" || option == "-V");
        if !tells {
            self.wrapped(
                &wrapper("command", &[], 0),
                arguments,
                certain,
                depth,
                stdin,
            );
        }
    }

    /// `find … -exec command ;`
    fn find(&mut self, arguments: &[Text], certain: bool, depth: usize) {
        let mut rest = arguments;
        while let Some((word, behind)) = rest.split_first() {
            rest = behind;
            let text = word.known().unwrap_or_default();
            if !matches!(text.as_str(), "-exec" | "-execdir" | "-ok" | "-okdir") {
                continue;
            }
            let is_end = |word: &Text| word.known().is_some_and(|it| it == ";" || it == "+");
            let end = behind.iter().position(is_end).unwrap_or(behind.len());
            let (command, later) = behind.split_at(end);
            let filled: Vec<Text> = command.iter().map(filled).collect();
            self.follow(&filled, certain, depth + 1, &Stdin::Empty);
            rest = later;
        }
    }

    /// `watch`, which gives its words to a shell.
    fn watch(&mut self, arguments: &[Text], depth: usize) {
        let is_option = |word: &&Text| {
            let text = word.known().unwrap_or_default();
            text.starts_with('-') || text.chars().all(|it| it.is_ascii_digit() || it == '.')
        };
        let options = arguments.iter().take_while(is_option).count();
        let line = Text::joined(arguments.get(options..).unwrap_or_default());
        self.script(&line, depth, &Stdin::Empty);
    }

    /// `trap 'line' EXIT`
    fn trap(&mut self, arguments: &[Text], depth: usize) {
        let is_option = |word: &&Text| word.known().is_some_and(|it| it.starts_with('-'));
        if let Some(line) = arguments.iter().find(|word| !is_option(word)) {
            self.script(line, depth, &Stdin::Empty);
        }
    }

    /// `. file`: a file is a program like any other; what a substitution says is not.
    fn sourced(&mut self, arguments: &[Text]) {
        if arguments.first().is_some_and(is_made_here) {
            self.unjudged("a script that the line itself makes");
        }
    }

    /// A shell: `-c line`, a script's file, or what it reads.
    fn shell(&mut self, arguments: &[Text], depth: usize, stdin: &Stdin) {
        let (mut takes_line, mut reads) = (false, false);
        let mut rest = arguments;
        while let Some((word, behind)) = rest.split_first() {
            let Some(text) = word.known() else {
                // It may be an option, also one that makes the next word a line.
                self.unjudged("a shell whose options are only known when it runs");
                for later in behind {
                    self.script(later, depth, stdin);
                }
                break;
            };
            if text == "--" || text == "-" {
                rest = behind;
                break;
            }
            let long = text.starts_with("--");
            let short = !long && (text.starts_with('-') || text.starts_with('+'));
            if !long && !short {
                break;
            }
            takes_line |= short && text.contains('c');
            reads |= short && text.contains('s');
            let with_value = matches!(text.as_str(), "--rcfile" | "--init-file")
                || (short && text.ends_with(['o', 'O']));
            rest = behind.get(usize::from(with_value)..).unwrap_or_default();
        }
        match (rest.first(), stdin) {
            (Some(line), _) if takes_line => self.script(line, depth, stdin),
            (Some(file), _) if !reads => {
                if is_made_here(file) {
                    self.unjudged("a script that the line itself makes");
                }
            }
            (_, Stdin::Text(text)) => self.script(text, depth, &Stdin::Empty),
            _ => self.unjudged("a shell that runs what it reads"),
        }
    }
}

/// The word behind `-c`, or behind options that end in it.
fn option_c(arguments: &[Text]) -> Option<&Text> {
    let is_c = |word: &Text| {
        let text = word.known().unwrap_or_default();
        text == "--command"
            || (text.starts_with('-') && !text.starts_with("--") && text.ends_with('c'))
    };
    let place = arguments.iter().position(is_c)?;
    arguments.get(place + 1)
}

fn is_assignment(text: &str) -> bool {
    let Some((name, _)) = text.split_once('=') else {
        return false;
    };
    !name.is_empty()
        && name.chars().all(|it| it.is_alphanumeric() || it == '_')
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

/// `{}` is what `find` fills in.
fn filled(word: &Text) -> Text {
    match word.known() {
        Some(text) if text.contains("{}") => {
            let mut filled = Text::default();
            for (index, part) in text.split("{}").enumerate() {
                if index > 0 {
                    filled.push_gap();
                }
                filled.push_str(part);
            }
            filled
        }
        _ => word.clone(),
    }
}

/// A file that is a descriptor, or whose name is only known later.
fn is_made_here(file: &Text) -> bool {
    file.known().is_none_or(|name| {
        name.starts_with("/dev/fd") || name.starts_with("/dev/stdin") || name.contains("/fd/")
    })
}
