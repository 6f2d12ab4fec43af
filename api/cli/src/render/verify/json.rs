//! The verdict on an export, for programs.

use std::path::Path;

use fluxvm_verify::Report;
use fluxvm_verify::VerifierKey;
use serde_json::Value;
use serde_json::json;

use super::scope;
use super::verdict::Verdict;

/// The report as one JSON document.
///
/// `key` is the one that was asked for.
pub(crate) fn to_json(file: &Path, report: &Report, key: Option<&VerifierKey>) -> Value {
    let faults: Vec<Value> = report
        .faults
        .iter()
        .map(|fault| {
            json!({
                "code": fault.code.as_str(),
                "seq": fault.seq.map(|seq| seq.get()),
                "kind": fault.kind.as_ref().map(ToString::to_string),
                "line": fault.line,
                "detail": fault.detail,
            })
        })
        .collect();
    json!({
        "file": file,
        "ok": report.is_clean(),
        "verdict": Verdict::of(report).word(),
        "signed": report.is_signed(),
        "ledger_id": report.genesis.as_ref().map(|genesis| genesis.ledger_id.to_string()),
        "scope": report.scope.as_ref().map(scope),
        "events": report.events,
        "streams": report.streams,
        "redacted": report.redacted,
        "redactions": report
            .redactions
            .iter()
            .map(|it| {
                let order = it.order.map(|order| order.get());
                json!({"seq": it.seq.get(), "kind": it.kind.to_string(), "order": order})
            })
            .collect::<Vec<_>>(),
        "proofs": report.proofs,
        "blobs": report.blobs,
        "content": {"named": report.content.named, "present": report.content.present},
        "budgets": report
            .budgets
            .iter()
            .map(|it| {
                let stream = it.stream.to_string();
                json!({"stream": stream, "name": it.name, "limit": it.limit, "most": it.most})
            })
            .collect::<Vec<_>>(),
        "checkpoint": report.checkpoint.as_ref().map(|checkpoint| {
            json!({"size": checkpoint.size.get(), "root": checkpoint.root.to_string()})
        }),
        "keys": report.keys.iter().map(|(_, key)| key.to_string()).collect::<Vec<_>>(),
        "key_asked": key.map(ToString::to_string),
        "head": report.head.map(|(seq, hash)| json!({"seq": seq.get(), "hash": hash.to_string()})),
        "faults_total": report.faults_total,
        "faults": faults,
    })
}
