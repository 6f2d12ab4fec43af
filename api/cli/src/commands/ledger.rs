//! `ledger info`, through the daemon, and `ledger verify`, which needs none.

use std::fs::File;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::path::Path;
use std::path::PathBuf;

use fluxvm_verify::ConsistencyProof;
use fluxvm_verify::FaultCode;
use fluxvm_verify::Report;
use fluxvm_verify::VerifyOptions;
use fluxvm_verify::verify_export;

use super::Context;
use super::file_error;
use crate::args::verify::VerifyArgs;
use crate::compress;
use crate::error::CliError;
use crate::error::EXIT_FAILED;
use crate::error::EXIT_USAGE;
use crate::render;

/// `ledger info`.
pub(super) fn info(context: &Context) -> Result<u8, CliError> {
    let answer = context.client()?.get("/v1/ledger/info")?;
    context.output.show(&answer, render::ledger::info)?;
    Ok(0)
}

/// `ledger verify`.
pub(super) fn verify(context: &Context, args: VerifyArgs) -> Result<u8, CliError> {
    let read =
        |path: &PathBuf| std::fs::read_to_string(path).map_err(|error| file_error(path, error));
    let proof = |path: &PathBuf| {
        let proof = read(path)?.parse::<ConsistencyProof>();
        proof.map_err(|error| file_error(path, io::Error::other(error)))
    };
    let options = VerifyOptions {
        ledger_id: args.ledger_id,
        known: args.known,
        key: args.key,
        allow_unsigned: args.allow_unsigned,
        against: args.against.iter().map(read).collect::<Result<_, _>>()?,
        consistency: args
            .consistency
            .iter()
            .map(proof)
            .collect::<Result<_, _>>()?,
        ..VerifyOptions::default()
    };
    let lines = compress::lines(open(&args.file)?);
    let lines = lines.map_err(|error| file_error(&args.file, error))?;
    let report = verify_export(lines, &options);
    let key = options.key.as_ref();
    let answer = render::verify::to_json(&args.file, &report, key);
    context.output.show(&answer, |_, style| {
        render::verify::render(&report, key, style)
    })?;
    Ok(exit_code(&report))
}

/// The bytes of a file, or of standard input for `-`.
pub(super) fn open(file: &Path) -> Result<Box<dyn BufRead>, CliError> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let opened = File::open(file).and_then(|opened| {
        // A folder can be opened; that it cannot be read would look like a fault of the ledger.
        if opened.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        Ok(opened)
    });
    Ok(Box::new(BufReader::new(
        opened.map_err(|error| file_error(file, error))?,
    )))
}

/// A file that could not be read to its end says nothing about the ledger.
fn exit_code(report: &Report) -> u8 {
    if report
        .faults
        .iter()
        .any(|fault| fault.code == FaultCode::Unreadable)
    {
        return EXIT_USAGE;
    }
    if report.is_clean() { 0 } else { EXIT_FAILED }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing;

    impl io::Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }

    #[test]
    fn faults_exit_with_1_and_what_cannot_be_read_with_2() {
        let options = VerifyOptions::default();
        assert_eq!(
            exit_code(&verify_export(&b"{}\n"[..], &options)),
            EXIT_FAILED
        );
        assert_eq!(
            exit_code(&verify_export(BufReader::new(Failing), &options)),
            EXIT_USAGE
        );
        assert!(open(Path::new("/")).is_err());
        assert!(open(Path::new("/nonexistent")).is_err());
    }
}
