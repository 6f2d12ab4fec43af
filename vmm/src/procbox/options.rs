//! Where this engine's files and programs are.

use std::path::PathBuf;

/// The host's id of root inside, unless told otherwise: above every id that a distribution hands
/// out.
pub const UID_BASE_DEFAULT: u32 = 100_000;
/// How many users exist inside, unless told otherwise: all that 16 bits can name, `nobody`
/// included.
pub const UID_COUNT_DEFAULT: u32 = 65_536;

/// Where this engine's files and programs are. All paths are absolute.
#[derive(Clone, Debug)]
pub struct ProcboxOptions {
    /// One folder per sandbox.
    pub sandboxes_dir: PathBuf,
    /// One folder per captured layer. It lies on the file system of `sandboxes_dir`, or copies are
    /// slower.
    pub layers_dir: PathBuf,
    /// One folder per snapshot.
    pub snapshots_dir: PathBuf,
    /// One folder per image, with its root file system in `rootfs`.
    pub images_dir: PathBuf,
    /// Holds `agents/<sandbox id>`: the tokens.
    pub secrets_dir: PathBuf,
    /// Folders and files of the host that no sandbox may see, beside those that this engine hides
    /// anyway. The whole state folder belongs here.
    pub masked_paths: Vec<PathBuf>,
    /// The guest daemon's program, linked statically.
    pub agentd: PathBuf,
    /// The launcher's program.
    pub launcher: PathBuf,
    /// The program that keeps processes, CRIU 4.1 or newer; see [`find_criu`](super::find_criu).
    pub criu: Option<PathBuf>,
    /// The host's id of root inside. Ignored for an ordinary user.
    pub uid_base: u32,
    /// How many users exist inside. Ignored for an ordinary user.
    pub uid_count: u32,
}
