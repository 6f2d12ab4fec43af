//! Around a list of programs. Python is on the list, so that every line below gets past the rules about
//! lines and the kernel alone is left.
//!
//! The loader starts whatever can be read, and is on every list because nothing starts without it: that
//! is a limit of these lists, and no row.

use fluxvm_replay_tests::shared;
use serde_json::json;

use crate::row::Attempt;
use crate::row::Control::WithoutPolicy;
use crate::row::Layer;
use crate::row::Layer::CallFilter;
use crate::row::Layer::Landlock;
use crate::row::all_are_stopped;

/// Python with a way to become a program and one to copy a file that can be executed.
macro_rules! python {
    ($code:literal) => {
        concat!(
            "python3 -c 'import os, shutil, subprocess\n",
            "def run(*words): os.execv(words[0], words)\n",
            "def copy(a, b): shutil.copyfile(a, b); os.chmod(b, 0o755)\n",
            $code,
            "'"
        )
    };
}

const fn row(name: &'static str, layer: Layer, line: &'static str) -> Attempt {
    Attempt {
        name,
        layer,
        line,
        control: WithoutPolicy,
    }
}

const ATTEMPTS: [Attempt; 13] = [
    row(
        "a program that is not listed",
        Landlock,
        python!("run(\"/bin/ls\", \"/\")"),
    ),
    row(
        "a copy of it",
        Landlock,
        python!("copy(\"/bin/ls\", \"mine\"); run(\"./mine\")"),
    ),
    row(
        "a copy under a listed name",
        Landlock,
        python!("copy(\"/bin/ls\", \"/tmp/cat\"); run(\"/tmp/cat\")"),
    ),
    row(
        "a copy in shared memory",
        Landlock,
        python!("copy(\"/bin/ls\", \"/dev/shm/mine\"); run(\"/dev/shm/mine\")"),
    ),
    row(
        "a copy in a file without a name",
        CallFilter,
        python!(
            "f=os.memfd_create(\"x\", 0); os.write(f, open(\"/bin/ls\",\"rb\").read()); run(f\"/proc/self/fd/{f}\", \"/\")"
        ),
    ),
    row(
        "a copy in a file that was removed",
        Landlock,
        python!(
            "copy(\"/bin/ls\", \"gone\"); f=os.open(\"gone\", os.O_RDONLY); os.unlink(\"gone\"); run(f\"/proc/self/fd/{f}\", \"/\")"
        ),
    ),
    row(
        "a script",
        Landlock,
        python!(
            "open(\"s\",\"w\").write(\"#!/bin/sh\\ntrue\\n\"); os.chmod(\"s\", 0o755); run(\"./s\")"
        ),
    ),
    row(
        "a link with a listed name",
        Landlock,
        python!("os.path.lexists(\"cat\") or os.symlink(\"/bin/ls\", \"cat\"); run(\"./cat\")"),
    ),
    row(
        "another name of the file",
        Landlock,
        python!("os.link(\"/usr/bin/env\", \"/tmp/env\"); run(\"/tmp/env\")"),
    ),
    row(
        "a shell that starts it",
        Landlock,
        python!("subprocess.run([\"sh\", \"-c\", \"ls /\"], check=True)"),
    ),
    row(
        "a child in a session of its own",
        Landlock,
        python!("subprocess.run([\"ls\"], check=True, start_new_session=True)"),
    ),
    row(
        "a listed program written over",
        Landlock,
        python!("f=open(\"/usr/bin/cat\",\"r+b\"); f.write(open(\"/bin/cat\",\"rb\").read())"),
    ),
    row(
        "a listed program put aside",
        Landlock,
        python!("copy(\"/bin/cat\", \"/tmp/other\"); os.rename(\"/tmp/other\", \"/usr/bin/cat\")"),
    ),
];

#[test]
fn a_list_of_programs_has_no_detour() {
    let daemon = shared();
    let api = daemon.api();
    let process = json!({"allow": ["python3 *", "cat *", "echo *"], "enforce": "exec"});
    let id = api.create_with(&json!({"agent": "tester", "policy": {"process": process}}));
    let free = api.create();
    all_are_stopped(api, &id, &free, &ATTEMPTS);
    assert_eq!(api.exec(&id, "cat /etc/hostname").exit_code, 0);
    api.remove(&id);
    api.remove(&free);
}
