//! How a connection to a guest comes to be.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nix::fcntl::AT_FDCWD;
use nix::fcntl::OFlag;
use nix::fcntl::OpenHow;
use nix::fcntl::ResolveFlag;
use nix::fcntl::open;
use nix::fcntl::openat;
use nix::fcntl::openat2;
use nix::sys::stat::Mode;
use nix::sys::stat::SFlag;
use nix::sys::stat::fstat;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::net::UnixStream;

/// Bytes both ways.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Something that can dial a guest: a unix socket, vsock, a port.
pub trait Connect: Send + Sync + 'static {
    /// Dials once.
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>>;
}

/// Pause before dialling again a socket whose accept queue is full.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// How often a full accept queue is tried: about two seconds.
const BACKLOG_TRIES_MAX: u32 = 2000;

/// Dials a unix socket by path, trusting nobody who can write to the folder that it lies in.
///
/// The socket is opened as a path first, without following a symbolic link, and connected through
/// that descriptor: what was checked is what is dialled, and the length of the path does not
/// matter.
#[derive(Clone, Debug)]
pub struct UnixConnector {
    base: Option<PathBuf>,
    path: PathBuf,
}

impl UnixConnector {
    /// The socket at `path`. Its folder is trusted; its last component must not be a link.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            base: None,
            path: path.into(),
        }
    }

    /// The socket at `path` beneath `base`. Only `base` is trusted: no component of `path` may be
    /// a link or lead out of `base`. For sockets inside a guest's own root folder.
    pub fn beneath(base: impl Into<PathBuf>, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let relative = path.strip_prefix("/").unwrap_or(path).to_owned();
        Self {
            base: Some(base.into()),
            path: relative,
        }
    }

    fn open_socket(&self) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let folder_flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let socket = if let Some(base) = &self.base {
            let base = open(base, folder_flags, Mode::empty())?;
            let resolve = ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS;
            openat2(
                base,
                &self.path,
                OpenHow::new().flags(flags).resolve(resolve),
            )?
        } else {
            let name: OsString = self
                .path
                .file_name()
                .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?
                .to_owned();
            let folder = match self.path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            let folder = openat(AT_FDCWD, folder, folder_flags, Mode::empty())?;
            openat(folder, name.as_os_str(), flags, Mode::empty())?
        };
        let kind = SFlag::from_bits_truncate(fstat(&socket)?.st_mode) & SFlag::S_IFMT;
        if kind != SFlag::S_IFSOCK {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket"));
        }
        Ok(socket)
    }
}

impl Connect for UnixConnector {
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async move {
            let socket = self.open_socket()?;
            let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
            for _ in 0..BACKLOG_TRIES_MAX {
                match UnixStream::connect(&path).await {
                    Ok(stream) => return Ok(Box::new(stream) as Box<dyn ByteStream>),
                    // A unix socket says so instead of waiting when its accept queue is full.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tokio::time::sleep(BACKLOG_PAUSE).await;
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

/// Dials a TCP port.
#[derive(Clone, Debug)]
pub struct TcpConnector {
    address: std::net::SocketAddr,
}

impl TcpConnector {
    /// The daemon at `address`.
    pub fn new(address: std::net::SocketAddr) -> Self {
        Self { address }
    }
}

impl Connect for TcpConnector {
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_long_path_is_dialled_and_a_link_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let short = folder.path().join("s");
        let _listener = UnixListener::bind(&short).unwrap();
        let long = deep.join("socket");
        std::fs::rename(&short, &long).unwrap();
        assert!(UnixConnector::new(&long).connect().await.is_ok());

        let link = deep.join("link");
        std::os::unix::fs::symlink(&long, &link).unwrap();
        assert!(UnixConnector::new(&link).connect().await.is_err());
    }

    #[tokio::test]
    async fn beneath_a_base_no_component_may_be_a_link_or_lead_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("run")).unwrap();
        let _listener = UnixListener::bind(root.join("run/agent")).unwrap();
        let _outside = UnixListener::bind(folder.path().join("agent")).unwrap();
        std::os::unix::fs::symlink(folder.path(), root.join("out")).unwrap();
        std::os::unix::fs::symlink("run", root.join("alias")).unwrap();
        for (path, reached) in [
            ("/run/agent", true),
            ("run/agent", true),
            ("alias/agent", false),
            ("out/agent", false),
            ("../agent", false),
            ("run", false),
            ("run/absent", false),
        ] {
            let connected = UnixConnector::beneath(&root, path).connect().await;
            assert_eq!(connected.is_ok(), reached, "{path}");
        }
    }
}
