//! The parsed line, walked over in the order in which it stands.

use brush_parser::ast;
use brush_parser::ast::Command;
use brush_parser::ast::CommandPrefixOrSuffixItem as Item;
use brush_parser::ast::CompoundCommand as Compound;
use brush_parser::ast::IoFileRedirectKind as Kind;
use brush_parser::ast::IoFileRedirectTarget as Target;
use brush_parser::ast::IoRedirect;

use super::Reader;
use super::Stdin;
use crate::policy::text::Text;

impl Reader {
    pub(super) fn program(&mut self, program: &ast::Program, depth: usize, stdin: &Stdin) {
        for list in &program.complete_commands {
            self.list(list, depth, stdin);
        }
    }

    fn list(&mut self, list: &ast::CompoundList, depth: usize, stdin: &Stdin) {
        for item in &list.0 {
            self.pipeline(&item.0.first, depth, stdin);
            for next in &item.0.additional {
                let (ast::AndOr::And(pipeline) | ast::AndOr::Or(pipeline)) = next;
                self.pipeline(pipeline, depth, stdin);
            }
        }
    }

    fn pipeline(&mut self, pipeline: &ast::Pipeline, depth: usize, stdin: &Stdin) {
        for (index, command) in pipeline.seq.iter().enumerate() {
            let piped = Stdin::Unknown;
            let stdin = if index == 0 { stdin } else { &piped };
            self.command(command, depth, stdin);
        }
    }

    fn command(&mut self, command: &Command, depth: usize, stdin: &Stdin) {
        match command {
            Command::Simple(simple) => self.simple(simple, depth, stdin),
            Command::Compound(compound, redirects) => {
                let stdin = self.redirects(redirects.as_ref(), depth, stdin);
                self.compound(compound, depth, &stdin);
            }
            // Judged as if it were called: whether and when it is, is not followed.
            Command::Function(function) => {
                let ast::FunctionBody(body, redirects) = &function.body;
                self.redirects(redirects.as_ref(), depth, stdin);
                self.compound(body, depth, &Stdin::Unknown);
            }
            Command::ExtendedTest(test, redirects) => {
                self.redirects(redirects.as_ref(), depth, stdin);
                self.test(&test.expr, depth);
            }
        }
    }

    fn compound(&mut self, compound: &Compound, depth: usize, stdin: &Stdin) {
        match compound {
            Compound::BraceGroup(group) => self.list(&group.list, depth, stdin),
            Compound::Subshell(subshell) => self.list(&subshell.list, depth, stdin),
            Compound::ForClause(clause) => {
                self.substitutions_of(clause.values.iter().flatten(), depth);
                self.list(&clause.body.list, depth, stdin);
            }
            Compound::CaseClause(clause) => self.case(clause, depth, stdin),
            Compound::IfClause(clause) => self.condition(clause, depth, stdin),
            Compound::WhileClause(clause) | Compound::UntilClause(clause) => {
                self.list(&clause.0, depth, stdin);
                self.list(&clause.1.list, depth, stdin);
            }
            Compound::Coprocess(process) => {
                self.substitutions_of(&process.name, depth);
                self.command(&process.body, depth, &Stdin::Unknown);
            }
            // A shell without arithmetic commands runs them as subshells.
            Compound::Arithmetic(arithmetic) => {
                self.unjudged("`((`, which not every shell reads as arithmetic");
                self.inside(&arithmetic.expr.value, depth + 1);
                self.script(&Text::literal(&arithmetic.expr.value), depth, stdin);
            }
            Compound::ArithmeticForClause(clause) => {
                let parts = [&clause.initializer, &clause.condition, &clause.updater];
                for part in parts.into_iter().flatten() {
                    self.inside(&part.value, depth + 1);
                }
                self.list(&clause.body.list, depth, stdin);
            }
        }
    }

    fn case(&mut self, clause: &ast::CaseClauseCommand, depth: usize, stdin: &Stdin) {
        self.substitutions_of([&clause.value], depth);
        for case in &clause.cases {
            self.substitutions_of(&case.patterns, depth);
            if let Some(list) = &case.cmd {
                self.list(list, depth, stdin);
            }
        }
    }

    fn condition(&mut self, clause: &ast::IfClauseCommand, depth: usize, stdin: &Stdin) {
        self.list(&clause.condition, depth, stdin);
        self.list(&clause.then, depth, stdin);
        for other in clause.elses.iter().flatten() {
            if let Some(condition) = &other.condition {
                self.list(condition, depth, stdin);
            }
            self.list(&other.body, depth, stdin);
        }
    }

    fn test(&mut self, test: &ast::ExtendedTestExpr, depth: usize) {
        match test {
            ast::ExtendedTestExpr::And(left, right) | ast::ExtendedTestExpr::Or(left, right) => {
                self.unjudged("`&&` or `||` in `[[`, which not every shell reads as a test");
                self.test(left, depth);
                self.test(right, depth);
            }
            ast::ExtendedTestExpr::Not(inner) | ast::ExtendedTestExpr::Parenthesized(inner) => {
                self.test(inner, depth);
            }
            ast::ExtendedTestExpr::UnaryTest(_, word) => self.substitutions_of([word], depth),
            ast::ExtendedTestExpr::BinaryTest(_, left, right) => {
                self.substitutions_of([left, right], depth);
            }
        }
    }

    fn simple(&mut self, simple: &ast::SimpleCommand, depth: usize, stdin: &Stdin) {
        let mut words = Vec::new();
        let mut stdin = stdin.clone();
        for item in simple.prefix.iter().flat_map(|prefix| &prefix.0) {
            if let Item::AssignmentWord(assignment, _) = item {
                self.assigned(&assignment.value, depth);
            } else {
                self.item(item, depth, &mut words, &mut stdin);
            }
        }
        if let Some(name) = &simple.word_or_name {
            words.push(self.word(name, depth));
        }
        for item in simple.suffix.iter().flat_map(|suffix| &suffix.0) {
            self.item(item, depth, &mut words, &mut stdin);
        }
        if !words.is_empty() {
            self.follow(&words, true, depth, &stdin);
        }
    }

    fn item(&mut self, item: &Item, depth: usize, words: &mut Vec<Text>, stdin: &mut Stdin) {
        match item {
            Item::Word(word) => words.push(self.word(word, depth)),
            Item::AssignmentWord(assignment, word) => {
                self.assigned(&assignment.value, depth);
                words.push(match assignment.value {
                    ast::AssignmentValue::Scalar(_) => self.word(word, depth),
                    ast::AssignmentValue::Array(_) => Text::gap(),
                });
            }
            Item::ProcessSubstitution(_, subshell) => {
                self.list(&subshell.list, depth, &Stdin::Unknown);
                words.push(Text::gap());
            }
            Item::IoRedirect(redirect) => {
                if let Some(from) = self.redirect(redirect, depth) {
                    *stdin = from;
                }
            }
        }
    }

    fn redirects(
        &mut self,
        redirects: Option<&ast::RedirectList>,
        depth: usize,
        stdin: &Stdin,
    ) -> Stdin {
        let mut stdin = stdin.clone();
        for redirect in redirects.iter().flat_map(|redirects| &redirects.0) {
            if let Some(from) = self.redirect(redirect, depth) {
                stdin = from;
            }
        }
        stdin
    }

    /// Follows a redirection. Answers where the input comes from, if it says so.
    fn redirect(&mut self, redirect: &IoRedirect, depth: usize) -> Option<Stdin> {
        let is_input = |fd: &Option<i32>| fd.is_none_or(|fd| fd == 0);
        match redirect {
            IoRedirect::File(fd, kind, target) => {
                match target {
                    Target::Filename(word) | Target::Duplicate(word) => {
                        self.substitutions_of([word], depth);
                    }
                    Target::ProcessSubstitution(_, subshell) => {
                        self.list(&subshell.list, depth, &Stdin::Unknown);
                    }
                    Target::Fd(_) => {}
                }
                let reads = matches!(kind, Kind::Read | Kind::ReadAndWrite | Kind::DuplicateInput);
                (reads && is_input(fd)).then_some(Stdin::Unknown)
            }
            IoRedirect::HereDocument(fd, document) => {
                if depth == 0 {
                    let end = brush_parser::unquote_str(&document.here_end.value);
                    let body = document.doc.value.clone();
                    self.reading.documents.push((body, end));
                }
                let expands = document.requires_expansion;
                let text = self.here_document(&document.doc.value, expands, depth);
                is_input(fd).then_some(Stdin::Text(text))
            }
            IoRedirect::HereString(fd, word) => {
                let text = self.word(word, depth);
                is_input(fd).then_some(Stdin::Text(text))
            }
            IoRedirect::OutputAndError(word, _) => {
                self.substitutions_of([word], depth);
                None
            }
        }
    }
}
