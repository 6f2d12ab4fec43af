//! Captured disks: what comes back is what was there, to the last attribute.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::sync::Arc;

use common::{Lab, root_or_skip, sh};
use fluxvm_vmm::{
    Backend, EntryKind, Identity, ManifestQuery, MemoryWanted, ReviveError, Revived, Sandbox,
    SandboxId, SandboxSpec, Snapshot, SnapshotError, SnapshotId, SnapshotSpec,
};

async fn checkpoint(sandbox: &dyn Sandbox) -> Snapshot {
    let id = SnapshotId::random();
    let memory = MemoryWanted::Never;
    sandbox
        .checkpoint(SnapshotSpec { id, memory })
        .await
        .unwrap()
}

async fn revive(lab: &Lab, snapshot: &Snapshot) -> Arc<dyn Sandbox> {
    try_revive(lab, snapshot).await.unwrap().sandbox
}

async fn try_revive(lab: &Lab, snapshot: &Snapshot) -> Result<Revived, ReviveError> {
    let mut spec = SandboxSpec::new(SandboxId::random());
    spec.hostname = "same".to_owned();
    lab.engine.revive(spec, snapshot, Identity::Keep).await
}

async fn create(lab: &Lab) -> Arc<dyn Sandbox> {
    let mut spec = SandboxSpec::new(SandboxId::random());
    spec.hostname = "same".to_owned();
    lab.engine.create(spec).await.unwrap()
}

fn layers(lab: &Lab) -> Vec<String> {
    let dir = std::fs::read_dir(lab.state.path().join("layers")).unwrap();
    let names = dir.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// Makes one of everything below `/workspace`.
const EVERYTHING: &str = r#"
cd /workspace
mkdir -p empty deep/er/est sticky && chmod 1777 sticky && touch -d @1000000000.5 empty
printf hello > file && chmod 640 file && touch -d @1234567890.123456789 file
printf '#!/bin/sh\necho ran\n' > program && chmod 4755 program
ln -s ../nowhere dangling && ln -s file link
ln file hard && ln file deep/er/hard
mkfifo pipe
python3 - <<'P'
import os, socket
s = socket.socket(socket.AF_UNIX); s.bind("/workspace/socket")
os.setxattr("/workspace/file", "user.colour", b"blue\x00red")
os.setxattr("/workspace/deep", "user.note", b"folder")
open(b"/workspace/odd-\xff\xfe\\name", "w").write("odd")
with open("/workspace/sparse", "wb") as f:
    f.seek(50_000_000); f.write(b"end")
P
chown 1000:1001 deep/er && setfacl -m u:33:r file 2>/dev/null
rm /etc/debian_version && rm -r /usr/share/doc && mkdir /usr/share/doc && echo own > /usr/share/doc/own
echo '# changed' >> /etc/profile
chmod 751 /
"#;

/// Describes everything below the places that [`EVERYTHING`] touched.
const DESCRIBE: &str = r#"
python3 - <<'P'
import os, stat
def show(path):
    s = os.lstat(path)
    x = {n: os.getxattr(path, n, follow_symlinks=False) for n in sorted(os.listxattr(path, follow_symlinks=False))}
    time = s.st_mtime_ns if path != b"/" else 0
    line = [path, oct(s.st_mode), s.st_uid, s.st_gid, time, x]
    if stat.S_ISREG(s.st_mode):
        line += [s.st_size, s.st_nlink, hash_of(path)]
    if stat.S_ISLNK(s.st_mode):
        line += [os.readlink(path)]
    print(*line)
def hash_of(path):
    import hashlib
    return hashlib.sha256(open(path, "rb").read()).hexdigest()[:16]
for top in [b"/workspace", b"/usr/share/doc", b"/etc/profile", b"/etc/debian_version", b"/"]:
    if not os.path.lexists(top):
        print(top, "gone"); continue
    show(top)
    if top in (b"/", b"/etc/profile"): continue
    for folder, folders, files in os.walk(top):
        for name in sorted(folders + files):
            show(os.path.join(folder, name))
        folders.sort()
P
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_revived_disk_is_the_captured_one_to_the_last_attribute() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    assert!(
        lab.engine.capabilities().snapshot,
        "{:?}",
        lab.engine.capabilities()
    );
    let sandbox = create(&lab).await;
    sh(sandbox.guest(), EVERYTHING).await.ok();
    let before = sh(sandbox.guest(), DESCRIBE).await.ok().to_owned();
    let snapshot = checkpoint(sandbox.as_ref()).await;
    // What happens later is not in it.
    sh(
        sandbox.guest(),
        "rm -r /workspace/*; echo later > /workspace/file",
    )
    .await;

    let revived = revive(&lab, &snapshot).await;
    assert_eq!(sh(revived.guest(), DESCRIBE).await.ok(), before);
    let ran = sh(
        revived.guest(),
        "cd /workspace; ./program; cat link; echo; du -k sparse | cut -f1",
    )
    .await;
    let size: u32 = ran.ok().rsplit('\n').next().unwrap().parse().unwrap();
    assert!(size < 1000, "the hole stayed one: {ran:?}");
    assert!(ran.ok().starts_with("ran\nhello"), "{ran:?}");
    let again = checkpoint(revived.as_ref()).await;
    assert_eq!(
        again.disk, snapshot.disk,
        "the same disk has the same digest"
    );

    // The captured sandbox can go, and so can the snapshot: what was made from it stays.
    sandbox.destroy().await.unwrap();
    assert!(lab.engine.remove_snapshot(&snapshot.id).await.unwrap());
    assert!(!lab.engine.remove_snapshot(&snapshot.id).await.unwrap());
    assert_eq!(sh(revived.guest(), DESCRIBE).await.ok(), before);
    revived.destroy().await.unwrap();
    lab.engine.remove_snapshot(&again.id).await.unwrap();
    assert_eq!(layers(&lab), Vec::<String>::new(), "nothing stands on them");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_checkpoint_holds_its_own_state_and_stores_only_what_changed() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = create(&lab).await;
    let steps = [
        "cd /workspace; mkdir -p a/b c; for i in $(seq 30); do echo $i > a/b/$i; done; echo 1 > c/x",
        // A folder becomes a file, a file becomes a folder, a folder is replaced.
        "cd /workspace; rm -r c; echo file > c; rm a/b/1; mkdir a/b/1; echo in > a/b/1/in",
        "cd /workspace; rm c; mkdir c; echo 2 > c/y; rm -r a/b/1; rm a/b/2 a/b/3",
        "cd /workspace; mv a moved; ln moved/b/9 second; echo more >> moved/b/10",
        "cd /workspace; rm -r moved; mkdir -p moved/b; echo alone > moved/b/10; rm /etc/profile",
        "cd /workspace; rm -rf /etc/apt; mkdir /etc/apt; echo q > /etc/apt/q; echo p > /etc/profile",
        "cd /workspace; rm -rf /etc/apt; mkdir /etc/apt; echo r > /etc/apt/r; touch c/y",
        "true",
    ];
    // The number of names of a folder is the file system's own affair.
    let look = "cd /workspace; exec 2>&1; find . /etc/apt /etc/profile -type f -printf '%p %M %n %T@ ' \
                -exec sh -c 'cksum < $0' {} \\; -o -printf '%p %M %T@\n' | sort";
    let mut states = Vec::new();
    for step in steps {
        sh(sandbox.guest(), step).await.ok();
        let state = sh(sandbox.guest(), look).await.output;
        states.push((checkpoint(sandbox.as_ref()).await, state));
    }
    let (nothing, _) = states.last().unwrap();
    assert_eq!(nothing.stored_paths, 0, "nothing changed");
    assert!(states[1].0.stored_paths < 20, "{:?}", states[1].0);
    for (number, (snapshot, state)) in states.iter().enumerate() {
        let revived = revive(&lab, snapshot).await;
        assert_eq!(
            &sh(revived.guest(), look).await.output,
            state,
            "after step {number}"
        );
        // And on from there.
        sh(
            revived.guest(),
            "cd /workspace; rm -rf c; mkdir c; echo z > c/z; mv second third",
        )
        .await;
        let state = sh(revived.guest(), look).await.output;
        let next = checkpoint(revived.as_ref()).await;
        revived.destroy().await.unwrap();
        let second = revive(&lab, &next).await;
        assert_eq!(
            sh(second.guest(), look).await.output,
            state,
            "from step {number}"
        );
        second.destroy().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_chains_are_compacted_and_still_say_the_same() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = create(&lab).await;
    let mut snapshots = Vec::new();
    for step in 0..60 {
        let script = format!(
            "cd /workspace; echo {step} > same; echo {step} > own-{step}; rm -f own-$(({step} - 5)); \
             mkdir -p d{}; ln -f same d{}/hard",
            step % 7,
            step % 7
        );
        sh(sandbox.guest(), &script).await.ok();
        snapshots.push(checkpoint(sandbox.as_ref()).await);
    }
    let longest = snapshots
        .iter()
        .map(|snapshot| snapshot.layers)
        .max()
        .unwrap();
    assert!(longest <= 24, "{longest} layers");
    for step in [0, 7, 8, 30, 59] {
        let revived = revive(&lab, &snapshots[step]).await;
        let ran = sh(
            revived.guest(),
            "cd /workspace; cat same; ls own-* | wc -l; ls -d own-0",
        )
        .await;
        let own = (step + 1).min(5);
        assert!(
            ran.output.starts_with(&format!("{step}\n{own}\n")),
            "{step}: {ran:?}"
        );
        let hard = format!(
            "cd /workspace; stat -c %i same d{}/hard | uniq | wc -l",
            step % 7
        );
        assert_eq!(sh(revived.guest(), &hard).await.ok(), "1");
        revived.destroy().await.unwrap();
    }
    // The last one alone keeps what it needs.
    for snapshot in &snapshots[..59] {
        lab.engine.remove_snapshot(&snapshot.id).await.unwrap();
    }
    sandbox.destroy().await.unwrap();
    let revived = revive(&lab, &snapshots[59]).await;
    assert_eq!(sh(revived.guest(), "cat /workspace/same").await.ok(), "59");
    assert!(layers(&lab).len() <= 24, "{:?}", layers(&lab));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_through_a_mapping_is_captured() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = create(&lab).await;
    let script = r#"
cat > /workspace/map.py <<'P'
import mmap, os, time
f = open("/workspace/mapped", "r+b"); m = mmap.mmap(f.fileno(), 4096)
for step in range(4):
    while not os.path.exists(f"/tmp/go{step}"): time.sleep(0.001)
    m[0:1] = str(step).encode()
    open(f"/tmp/done{step}", "w")
time.sleep(1000)
P
head -c 4096 /dev/zero > /workspace/mapped
setsid python3 /workspace/map.py >/dev/null 2>&1 &
"#;
    sh(sandbox.guest(), script).await.ok();
    for step in 0..4 {
        let go = format!("touch /tmp/go{step}; while ! test -e /tmp/done{step}; do :; done");
        sh(sandbox.guest(), &go).await.ok();
        let snapshot = checkpoint(sandbox.as_ref()).await;
        let revived = revive(&lab, &snapshot).await;
        let first = sh(revived.guest(), "head -c 1 /workspace/mapped").await;
        assert_eq!(first.ok(), step.to_string());
        revived.destroy().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_was_tampered_with_is_refused() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = create(&lab).await;
    sh(
        sandbox.guest(),
        "cd /workspace; echo honest > file; mkdir d; ln -s file link",
    )
    .await
    .ok();
    let snapshot = checkpoint(sandbox.as_ref()).await;
    let layer = lab.state.path().join("layers").join(&layers(&lab)[0]);
    let file = layer.join("tree/workspace/file");
    let keep = |script: &str| {
        let status = std::process::Command::new("sh")
            .args(["-c", script])
            .current_dir(layer.join("tree/workspace"))
            .status();
        assert!(status.unwrap().success(), "{script}");
    };
    revive(&lab, &snapshot).await.destroy().await.unwrap();
    for (change, undo) in [
        ("printf 'forged\n' > file", "printf 'honest\\n' > file"),
        ("echo x > extra", "rm extra"),
        ("mv file /tmp/$PPID-forged", "mv /tmp/$PPID-forged file"),
        ("chmod 4755 file", "chmod 644 file"),
        (
            "ln -sfn /etc/shadow link",
            "ln -sfn file link; chown -h 100000:100000 link",
        ),
        (
            "sed -i s/honest/forged/ ../../manifest.json; sed -i 's/\"bytes\":7/\"bytes\":8/' ../../manifest.json",
            "true",
        ),
    ] {
        let times = std::fs::metadata(&file).unwrap().modified().unwrap();
        let folder = std::fs::metadata(layer.join("tree/workspace"))
            .unwrap()
            .modified()
            .unwrap();
        let link = std::process::Command::new("stat")
            .args(["-c", "%y", "link"])
            .current_dir(layer.join("tree/workspace"))
            .output()
            .unwrap();
        keep(change);
        // As a careful forger would.
        if let Ok(file) = std::fs::File::options().write(true).open(&file) {
            file.set_modified(times).unwrap();
        }
        std::fs::File::open(layer.join("tree/workspace"))
            .unwrap()
            .set_modified(folder)
            .unwrap();
        let fresh = fluxvm_vmm::Procbox::new(common::options(lab.state.path())).unwrap();
        for engine in [&lab.engine, &fresh] {
            let mut spec = SandboxSpec::new(SandboxId::random());
            spec.hostname = "same".to_owned();
            let id = spec.id;
            let refused = engine.revive(spec, &snapshot, Identity::Keep).await;
            // A manifest in memory is not read again.
            if change.starts_with("sed") && std::ptr::eq(engine, &lab.engine) {
                refused.unwrap().sandbox.destroy().await.unwrap();
                continue;
            }
            assert!(
                matches!(&refused, Err(ReviveError::Snapshot(SnapshotError::Damaged { id, .. })) if *id == snapshot.id),
                "{change}: {refused:?}"
            );
            assert!(!lab.folder(&id).exists());
        }
        keep(undo);
        if let Ok(file) = std::fs::File::options().write(true).open(&file) {
            file.set_modified(times).unwrap();
        }
        let touch = format!(
            "touch -h -d '{}' link",
            String::from_utf8_lossy(&link.stdout).trim()
        );
        keep(&touch);
        std::fs::File::open(layer.join("tree/workspace"))
            .unwrap()
            .set_modified(folder)
            .unwrap();
    }
    assert_eq!(
        sh(sandbox.guest(), "cat /workspace/file").await.ok(),
        "honest"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_captured_disk_is_read_without_mounting_it_and_shows_no_more_than_the_sandbox_saw() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = create(&lab).await;
    let script = "cd /workspace; mkdir d; echo one > d/file; ln -s /etc/shadow link; mkfifo pipe; \
                  chown 5:6 d/file; rm /etc/debian_version; ln -s / /workspace/up";
    sh(sandbox.guest(), script).await.ok();
    let snapshot = checkpoint(sandbox.as_ref()).await;
    let list = async |folder: &str| {
        let query = ManifestQuery {
            disk: snapshot.id.into(),
            folder: folder.parse().unwrap(),
            entries_max: 100_000,
        };
        lab.engine.manifest(query).await
    };
    let listed = list("/workspace").await.unwrap();
    let paths: Vec<&str> = listed.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["", "d", "d/file", "link", "pipe", "up"]);
    let file = &listed[2];
    assert_eq!((file.uid, file.gid, file.mode), (5, 6, 0o644));
    let digest = blake3::hash(b"one\n");
    assert!(
        matches!(&file.kind, EntryKind::File { bytes: 4, digest: d } if d.as_bytes() == digest.as_bytes())
    );
    assert!(matches!(&listed[3].kind, EntryKind::Link { target } if target == "/etc/shadow"));

    let etc = list("/etc").await.unwrap();
    let names: Vec<&str> = etc.iter().map(|entry| entry.path.as_str()).collect();
    assert!(
        names.contains(&"passwd") && names.contains(&"hostname"),
        "{names:?}"
    );
    for hidden in ["shadow", "debian_version", "ssh", "gshadow"] {
        assert!(!names.contains(&hidden), "{hidden}");
    }
    // The same as the sandbox itself sees of what it may read.
    let inside = sh(
        sandbox.guest(),
        "cd /etc && find . -mindepth 1 \\( -type d -o -type f -o -type l \\) \
        ! -name shadow\\* ! -name gshadow\\* -printf '%P\\n' 2>/dev/null | LC_ALL=C sort",
    )
    .await;
    let readable = |name: &&str| !name.is_empty();
    let listed: Vec<&str> = names.iter().filter(|n| readable(n)).copied().collect();
    let missing: Vec<&str> = inside
        .output
        .lines()
        .filter(|name| !listed.contains(name))
        .collect();
    let more: Vec<&&str> = listed
        .iter()
        .filter(|name| !inside.output.lines().any(|line| line == **name))
        .collect();
    assert!(more.is_empty(), "{more:?}");
    for name in missing {
        let probe = format!("cat /etc/{name} >/dev/null 2>&1 || ls /etc/{name}/ >/dev/null 2>&1");
        let ran = sh(sandbox.guest(), &probe).await;
        assert_ne!(
            ran.code,
            Some(0),
            "{name} can be read inside and is not listed"
        );
    }

    let read = async |path: &str| {
        let mut file = lab
            .engine
            .open_file(&snapshot.id.into(), &path.parse().unwrap())
            .await?;
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut file, &mut text)
            .await
            .unwrap();
        Ok::<_, SnapshotError>(text)
    };
    assert_eq!(read("/workspace/d/file").await.unwrap(), "one\n");
    assert!(read("/etc/passwd").await.unwrap().contains("root:"));
    for path in [
        "/workspace/link",
        "/workspace/d",
        "/workspace/pipe",
        "/etc/shadow",
        "/workspace/up/etc/passwd",
        "/etc/debian_version",
        "/proc/self/environ",
        "/root/.bashrc",
        "/workspace/nothing",
    ] {
        let refused = read(path).await;
        assert!(
            matches!(refused, Err(SnapshotError::NoSuchPath { .. })),
            "{path}: {refused:?}"
        );
    }
    assert!(matches!(
        list("/workspace/d/file").await,
        Err(SnapshotError::NoSuchPath { .. })
    ));
    let query = ManifestQuery {
        disk: snapshot.id.into(),
        folder: "/workspace".parse().unwrap(),
        entries_max: 5,
    };
    assert!(matches!(
        lab.engine.manifest(query).await,
        Err(SnapshotError::TooMany { limit: 5, .. })
    ));
}
