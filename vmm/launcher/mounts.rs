//! The sandbox's root file system, built in the launcher's mount namespace.
//!
//! ```text
//!   root  = overlay( upper: <folder>/upper, lowers: captured layers, skeleton, below )
//!   below = host root:  overlay( empty, the host's / with shifted owners ), mounted as nobody
//!           image:      the image's folder under the sandbox's owners
//!           ordinary user: nothing; each of the host's folders is an overlay of its own instead
//! ```
//!
//! Everything happens below a scratch tmpfs and with relative paths: no state path, however odd or
//! long, ends up in a mount option, and nobody needs no right to walk to it.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use fluxvm_vmm::CreateStage;
use fluxvm_vmm::procbox::wire::{
    DEVICE_NODES, GRAFTS, LaunchFacts, LaunchRequest, Lower, MOUNT_POINT, UPPER, Users, WORK,
};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::unistd::{Gid, Uid, chown};

use crate::credentials::as_nobody;
use crate::fault::{Context, Failure, at, lacks};
use crate::sys;

/// The sandbox's root, relative to the scratch tmpfs.
pub(crate) const ROOT: &str = "root";
const EMPTY: &str = "empty";
const SHIFTED: &str = "shifted";
const BELOW: &str = "below";
/// Copies in the upper are whole and plain, so that a layer can be read without knowing its
/// overlay; unmounting does not sync, because a sandbox's scratch is not worth the host's disk
/// time.
const PLAIN: &str = "redirect_dir=nofollow,metacopy=off,index=off";
/// The same in an ordinary user's namespace, where it is the only way and may not be spelled out.
const PLAIN_SINGLE_USER: &str = "userxattr,index=off";

/// Mounts the scratch tmpfs beside the sandbox's folder and goes there. All launchers mount at the
/// same place, each in a namespace of its own.
pub(crate) fn enter_scratch(folder: &Path) -> Result<(), Failure> {
    let what = || format!("a scratch file system in {}", folder.display());
    let point = folder.parent().unwrap_or(folder).join(MOUNT_POINT);
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("fluxvm"),
        &point,
        Some("tmpfs"),
        flags,
        Some("mode=755,size=1m"),
    )
    .stage(CreateStage::LowerLayers, what)?;
    std::env::set_current_dir(&point).stage(CreateStage::LowerLayers, what)?;
    for name in [ROOT, EMPTY, SHIFTED, BELOW] {
        fs::create_dir(name).stage(CreateStage::LowerLayers, what)?;
    }
    Ok(())
}

/// Something in the sandbox's folder, seen from the scratch tmpfs. The folder is named after an id.
pub(crate) fn own(request: &LaunchRequest, name: &str) -> String {
    let folder = request
        .folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    format!("../{folder}/{name}")
}

/// Mounts the whole root, without device nodes.
pub(crate) fn build_root(
    request: &LaunchRequest,
    pid: u32,
    facts: &mut LaunchFacts,
) -> Result<(), Failure> {
    let skeleton = format!("../{}", request.skeleton);
    let captured = captured_layers(request)?;
    let mut lowers = captured.clone();
    lowers.push(skeleton.clone());
    match &request.lower {
        Lower::HostRoot => {
            below_host_root(request, pid, facts)?;
            lowers.push(BELOW.to_owned());
        }
        Lower::Image(path) => lowers.push(below_image(request, path, pid, facts)?),
        Lower::HostFolders(_) => {}
    }
    at(CreateStage::RootOverlay)?;
    name_host(request)?;
    let (upper, work) = (own(request, UPPER), own(request, WORK));
    overlay(request, ROOT, &lowers, &upper, &work).stage(CreateStage::RootOverlay, || {
        "mounting the root overlay".into()
    })?;
    if let Lower::HostFolders(folders) = &request.lower {
        for (number, folder) in folders.iter().enumerate() {
            graft(request, &captured, &skeleton, number, folder)?;
        }
    }
    Ok(())
}

/// Names the captured layers in the scratch file system, the uppermost first: whatever the state
/// folder is called, a mount of the longest chain then fits into one page of options.
fn captured_layers(request: &LaunchRequest) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for (number, tree) in request.layers.iter().enumerate().rev() {
        let name = format!("l{number}");
        symlink(tree, &name).stage(CreateStage::LowerLayers, || {
            format!("naming {}", tree.display())
        })?;
        names.push(name);
    }
    Ok(names)
}

/// Writes the host's name into the upper layer, before anything is mounted over it and without a
/// copy up.
fn name_host(request: &LaunchRequest) -> Result<(), Failure> {
    if !request.name_host && request.machine_id.is_none() {
        return Ok(());
    }
    let what = || "writing /etc/hostname".to_owned();
    let etc = match &request.lower {
        Lower::HostFolders(folders) => folders
            .iter()
            .position(|folder| folder == Path::new("/etc")),
        Lower::HostRoot | Lower::Image(_) => None,
    };
    let etc = match etc {
        Some(number) => own(request, &format!("{GRAFTS}/{number}/upper")),
        None => own(request, &format!("{UPPER}/etc")),
    };
    fs::create_dir_all(&etc).stage(CreateStage::RootOverlay, what)?;
    let name = &request.hostname;
    let hosts = format!("127.0.0.1\tlocalhost {name}\n::1\tlocalhost ip6-localhost\n");
    let mut files = Vec::new();
    if request.name_host {
        files.push(("hostname", format!("{name}\n")));
        files.push(("hosts", hosts));
    }
    if let Some(machine_id) = &request.machine_id {
        files.push(("machine-id", format!("{machine_id}\n")));
    }
    for (file, text) in &files {
        fs::write(format!("{etc}/{file}"), text).stage(CreateStage::RootOverlay, what)?;
    }
    if let Users::Shifted { base, .. } = request.users {
        let written = files.iter().map(|(file, _)| format!("{etc}/{file}"));
        for path in std::iter::once(etc.clone()).chain(written) {
            chown(
                path.as_str(),
                Some(Uid::from_raw(base)),
                Some(Gid::from_raw(base)),
            )
            .stage(CreateStage::RootOverlay, what)?;
        }
    }
    Ok(())
}

fn overlay(
    request: &LaunchRequest,
    target: &str,
    lowers: &[String],
    upper: &str,
    work: &str,
) -> Result<(), Errno> {
    let plain = match request.users {
        Users::Shifted { .. } => PLAIN,
        Users::Single { .. } => PLAIN_SINGLE_USER,
    };
    let lowers = lowers.join(":");
    let options = format!("lowerdir={lowers},upperdir={upper},workdir={work},volatile,{plain}");
    // Without device nodes: the flag is locked once the sandbox has its own mount namespace.
    mount(
        Some("overlay"),
        target,
        Some("overlay"),
        MsFlags::MS_NODEV,
        Some(options.as_str()),
    )
}

/// The host's root as nobody sees it, with owners that the sandbox knows where the kernel can do
/// that.
fn below_host_root(
    request: &LaunchRequest,
    pid: u32,
    facts: &mut LaunchFacts,
) -> Result<(), Failure> {
    let shifted = shift(request, Path::new("/"), pid, facts)?;
    at(CreateStage::LowerLayers)?;
    let lower = if shifted { SHIFTED } else { "/" };
    let options = format!("lowerdir={EMPTY}:{lower},{PLAIN}");
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NODEV;
    as_nobody(|| {
        mount(
            Some("overlay"),
            BELOW,
            Some("overlay"),
            flags,
            Some(options.as_str()),
        )
    })
    .stage(CreateStage::LowerLayers, || {
        format!("mounting {lower} as nobody")
    })
}

/// The image, with owners that the sandbox knows where the kernel can do that.
fn below_image(
    request: &LaunchRequest,
    path: &Path,
    pid: u32,
    facts: &mut LaunchFacts,
) -> Result<String, Failure> {
    let shifted =
        matches!(request.users, Users::Shifted { .. }) && shift(request, path, pid, facts)?;
    at(CreateStage::LowerLayers)?;
    if !shifted {
        let what = || format!("taking {}", path.display());
        let bind = MsFlags::MS_BIND;
        mount(Some(path), SHIFTED, None::<&str>, bind, None::<&str>)
            .stage(CreateStage::LowerLayers, what)?;
    }
    Ok(SHIFTED.to_owned())
}

/// Attaches `path` at [`SHIFTED`] under the owners of the first process's user namespace.
///
/// A file system that cannot do that is not a failure: its files then belong to nobody inside.
fn shift(
    request: &LaunchRequest,
    path: &Path,
    pid: u32,
    facts: &mut LaunchFacts,
) -> Result<bool, Failure> {
    const STAGE: CreateStage = CreateStage::IdmappedMount;
    at(STAGE)?;
    debug_assert!(
        matches!(request.users, Users::Shifted { .. }),
        "a single user shifts nothing"
    );
    let what = || format!("shifting the owners of {}", path.display());
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Failure::new(STAGE, what(), Errno::EINVAL))?;
    let users = File::open(format!("/proc/{pid}/ns/user")).stage(STAGE, what)?;
    let tried = sys::open_tree(&name).and_then(|tree| {
        if lacks(STAGE) {
            return Err(Errno::EINVAL);
        }
        sys::shift_owners(tree.as_fd(), users.as_fd())?;
        Ok(tree)
    });
    match tried {
        Ok(tree) => sys::move_mount(tree.as_fd(), c"shifted")
            .stage(STAGE, what)
            .map(|()| true),
        Err(errno @ (Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR)) => {
            Err(Failure::new(STAGE, what(), errno))
        }
        Err(errno) => {
            facts.owners_not_shifted = Some(format!("{}: {}", what(), errno.desc()));
            Ok(false)
        }
    }
}

/// One of the host's folders for an ordinary user: an overlay of its own at the same place.
fn graft(
    request: &LaunchRequest,
    captured: &[String],
    skeleton: &str,
    number: usize,
    folder: &Path,
) -> Result<(), Failure> {
    let what = || format!("mounting {}", folder.display());
    let refused = || Failure::new(CreateStage::LowerLayers, what(), Errno::EINVAL);
    let relative = folder.strip_prefix("/").map_err(|_| refused())?;
    let relative = relative.to_str().ok_or_else(refused)?;
    let target = format!("{ROOT}/{relative}");
    let (upper, work) = (
        own(request, &format!("{GRAFTS}/{number}/upper")),
        own(request, &format!("{GRAFTS}/{number}/work")),
    );
    for made in [&upper, &work] {
        fs::create_dir_all(made).stage(CreateStage::LowerLayers, what)?;
    }
    let attributes = fs::metadata(folder).stage(CreateStage::LowerLayers, what)?;
    fs::set_permissions(&upper, attributes.permissions()).stage(CreateStage::LowerLayers, what)?;
    let captured = captured.iter().map(|layer| format!("{layer}/{relative}"));
    let mut lowers: Vec<String> = captured
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()))
        .collect();
    lowers.extend([format!("{skeleton}/{relative}"), format!("/{relative}")]);
    overlay(request, &target, &lowers, &upper, &work).stage(CreateStage::LowerLayers, what)
}

/// Puts the host's harmless device nodes over the skeleton's placeholders, one mount each: a folder
/// of nodes would let root inside bring a node of its own to a mount on which nodes work.
pub(crate) fn devices(facts: &mut LaunchFacts) -> Result<(), Failure> {
    at(CreateStage::Devices)?;
    for name in DEVICE_NODES {
        let (from, to) = (format!("/dev/{name}"), format!("{ROOT}/dev/{name}"));
        let bound = mount(
            Some(from.as_str()),
            to.as_str(),
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        );
        match bound {
            Ok(()) => {}
            Err(Errno::ENOENT) => facts.missing_devices.push(from),
            Err(errno) => {
                let what = format!("binding {from}");
                return Err(Failure::new(CreateStage::Devices, what, errno));
            }
        }
    }
    Ok(())
}
