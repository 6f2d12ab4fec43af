//! `make bench`: what fluxvm costs on this machine.
//!
//! Everything runs for real: the released daemon over loopback, and the ledger in this process. These
//! machines are noisy, so that a figure alone says little: the time of one `fdatasync` and, where there is
//! one, a peer that does the least that anybody could are measured in the same run, and the ratio is
//! printed beside the figure. Targets are printed, never asserted. With `--ledger` the daemons are left out,
//! with `--guest` everything but the guest daemon alone, and with `--jobs` everything but output and jobs over the
//! host API.

mod figures;
mod guest;
mod guest_files;
mod host;
mod jobs;
mod ledger;
mod machine;
mod million;
mod peers;

use figures::Figure;

/// How much is measured: `--quick` divides every count, to see that the bench works.
#[derive(Clone, Copy)]
struct Scale {
    divisor: usize,
}

impl Scale {
    fn of(self, count: usize) -> usize {
        (count / self.divisor).max(1)
    }
}

const OPTIONS: [&str; 5] = ["--quick", "--json", "--ledger", "--guest", "--jobs"];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = words.iter().find(|word| !OPTIONS.contains(&word.as_str())) {
        eprintln!(
            "unknown option {unknown}\nusage: fluxvm-bench [{}]",
            OPTIONS.join("] [")
        );
        std::process::exit(2);
    }
    let has = |option: &str| words.iter().any(|word| word == option);
    let scale = Scale {
        divisor: if has("--quick") { 20 } else { 1 },
    };

    let machine = machine::describe();
    let mut figures: Vec<Figure> = Vec::new();
    eprintln!("measuring on {machine}");
    if !has("--guest") && !has("--jobs") {
        let sync = peers::fdatasync(scale.of(1_000));
        figures.push(sync.clone());
        eprintln!("the ledger");
        figures.extend(ledger::measure(scale, &sync));
        figures.extend(million::measure(scale));
    }
    if !has("--ledger") && !has("--jobs") {
        eprintln!("the guest daemon alone");
        figures.extend(guest::measure(scale));
    }
    if has("--jobs") {
        eprintln!("output over the host API");
        figures.extend(host::measure_jobs(scale));
    } else if !has("--ledger") && !has("--guest") {
        eprintln!("the daemon");
        figures.extend(host::measure(scale));
    }

    let json = figures::json(&machine, &figures);
    if has("--json") {
        println!("{json}");
    } else {
        println!("{machine}\n\n{}\n\n{json}", figures::table(&figures));
    }
}
