//! What identity is made of: the machine whose first process this is, or a model of one.

use std::io;
use std::path::Path;
use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use nix::mount::MsFlags;
use nix::mount::mount;
use nix::sys::time::TimeSpec;
use nix::time::ClockId;
use nix::time::clock_settime;

use crate::supervise::stir_randomness;

/// What identity repair needs of a machine.
pub(crate) trait Machine {
    /// The root of its files.
    fn root(&self) -> &Path;
    /// Fills a buffer with randomness.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
    /// Names the machine.
    fn set_hostname(&self, name: &str) -> io::Result<()>;
    /// Has `source` seen in the place of `target`.
    fn cover(&self, target: &Path, source: &Path) -> io::Result<()>;
    /// Mixes bytes into the kernel's randomness.
    fn stir(&self, bytes: &[u8]) -> io::Result<()>;
    /// The time, since the epoch.
    fn time(&self) -> Duration;
    /// Sets the clock.
    fn set_time(&self, since_epoch: Duration) -> io::Result<()>;
    /// Its name.
    fn hostname(&self) -> io::Result<String>;
}

/// The machine that this process is the first of.
#[derive(Debug)]
pub(crate) struct OwnMachine;

impl Machine for OwnMachine {
    fn root(&self) -> &Path {
        Path::new("/")
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(|error| io::Error::other(error.to_string()))
    }

    fn set_hostname(&self, name: &str) -> io::Result<()> {
        Ok(nix::unistd::sethostname(name)?)
    }

    fn cover(&self, target: &Path, source: &Path) -> io::Result<()> {
        let none: Option<&str> = None;
        Ok(mount(Some(source), target, none, MsFlags::MS_BIND, none)?)
    }

    fn stir(&self, bytes: &[u8]) -> io::Result<()> {
        stir_randomness(bytes)
    }

    fn time(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.unwrap_or_default()
    }

    fn set_time(&self, since_epoch: Duration) -> io::Result<()> {
        let time = TimeSpec::from_duration(since_epoch);
        Ok(clock_settime(ClockId::CLOCK_REALTIME, time)?)
    }

    fn hostname(&self) -> io::Result<String> {
        let name = nix::unistd::gethostname()?;
        name.into_string()
            .map_err(|_| io::ErrorKind::InvalidData.into())
    }
}
