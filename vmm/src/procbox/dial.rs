//! Reaching a guest daemon.
//!
//! Its socket has an abstract name in the sandbox's own network namespace: there is no file that
//! anything inside could remove, and the name comes back with the namespace when memory does. Where
//! the daemon may not enter that namespace, because an ordinary user runs it, the socket is a file
//! outside of the guest's view instead.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentd_client::{ByteStream, Connect, UnixConnector};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::wire::{ABSTRACT_SOCKET, Users};

/// Pause before dialling again a socket whose accept queue is full, and how often: two seconds.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);
const BACKLOG_TRIES_MAX: u32 = 2000;

/// The way to the guest daemon of a running sandbox.
pub(super) fn connector(users: Users, pid: u32, path: PathBuf) -> io::Result<Arc<dyn Connect>> {
    let by_path = || Arc::new(UnixConnector::new(path.clone())) as Arc<dyn Connect>;
    // An earlier version's daemon bound a file for every sandbox.
    if path.exists() {
        return Ok(by_path());
    }
    match users {
        Users::Shifted { .. } => match File::open(format!("/proc/{pid}/ns/net")) {
            Ok(net) => Ok(Arc::new(NamespaceConnector { net: Arc::new(net) })),
            // It has ended already: then nobody answers, and how it ended is the better answer.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(by_path()),
            Err(error) => Err(error),
        },
        Users::Single { .. } => Ok(by_path()),
    }
}

/// Dials the abstract name in one network namespace, whatever becomes of the process that it was
/// found by.
struct NamespaceConnector {
    net: Arc<File>,
}

impl Connect for NamespaceConnector {
    fn connect(
        &self,
    ) -> std::pin::Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send + '_>> {
        Box::pin(async {
            let fd = socket_in(&self.net)?;
            for _ in 0..BACKLOG_TRIES_MAX {
                let address = UnixAddr::new_abstract(ABSTRACT_SOCKET)?;
                match connect(fd.as_raw_fd(), &address) {
                    Ok(()) => {
                        let stream = std::os::unix::net::UnixStream::from(fd);
                        let stream = tokio::net::UnixStream::from_std(stream)?;
                        return Ok(Box::new(stream) as Box<dyn ByteStream>);
                    }
                    Err(Errno::EAGAIN) => tokio::time::sleep(BACKLOG_PAUSE).await,
                    Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

/// Makes a socket in a namespace. Only a thread of its own goes there, and it ends with that: none
/// of this process's others can be left in the wrong place.
fn socket_in(net: &Arc<File>) -> io::Result<OwnedFd> {
    let net = Arc::clone(net);
    let make = move || {
        setns(&*net, CloneFlags::CLONE_NEWNET)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(AddressFamily::Unix, SockType::Stream, flags, None)
    };
    let thread = std::thread::Builder::new()
        .name("fluxvm-dial".to_owned())
        .spawn(make)?;
    let made = thread.join();
    made.map_err(|_| io::Error::other("the dialling thread failed"))?
        .map_err(io::Error::from)
}
