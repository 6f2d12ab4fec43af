//! Every dependency has its reason, in one line of `docs/ARCHITECTURE.md`.

use std::fs;
use std::path::Path;

#[test]
fn every_dependency_has_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the workspace's manifest");
    let page = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).expect("the page");
    let (_, table) = page
        .split_once("## Dependencies")
        .expect("a chapter on dependencies");
    let (_, rest) = manifest
        .split_once("[workspace.dependencies]")
        .expect("dependencies");
    let (dependencies, _) = rest.split_once("\n[").expect("another table");
    let names = dependencies
        .lines()
        .filter_map(|line| Some(line.split_once(" = ")?.0));
    let others: Vec<&str> = names.filter(|name| !name.starts_with('#')).collect();
    assert!(others.len() > 30, "{others:?}");
    let has_reason = |name: &str| {
        let own = name.starts_with("fluxvm-") || name.starts_with("agentd-");
        let word = |c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c));
        own || table.split(word).any(|it| it == name)
    };
    let without: Vec<&str> = others
        .into_iter()
        .filter(|name| !has_reason(name))
        .collect();
    assert!(
        without.is_empty(),
        "without a reason in docs/ARCHITECTURE.md: {without:?}"
    );
}
