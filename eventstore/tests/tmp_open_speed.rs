#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs)]
mod support;
use fluxvm_eventstore::*;
use std::time::Instant;
use support::*;
#[test]
fn speed() {
    let dir = std::path::PathBuf::from("/dev/shm/fluxvm-open-speed");
    let mut o = options(&dir);
    o.cache_bytes = 32 << 20;
    if !dir.exists() {
        let l = Ledger::open(o.clone(), Box::new(|_| {})).unwrap();
        runtime().block_on(async {
            for n in 0..600u32 {
                let ev = (0..500)
                    .map(|i| {
                        NewEvent::new(
                            EventKind::parse("test.done").unwrap(),
                            1,
                            &serde_json::json!({"n": n*500+i, "x": "y".repeat(900)}),
                        )
                        .unwrap()
                    })
                    .collect();
                l.append(append(vec![to(
                    &format!("session/{}", n % 50),
                    ExpectedVersion::Any,
                    ev,
                )]))
                .await
                .unwrap();
            }
            l.close().await;
        });
    }
    for _ in 0..3 {
        let t = Instant::now();
        let l = Ledger::open(o.clone(), Box::new(|_| {})).unwrap();
        println!("open {} events: {:?}", l.head().position, t.elapsed());
        drop(l);
    }
}
