//! Files go in and out of a session byte by byte; nothing but the sandbox is ever touched, and the ledger
//! says what was done without saying what it was.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fluxvm_replay_tests::Answer;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::marker;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

fn put(api: &Api, id: &str, path: &str, content: &[u8], mode: Option<&str>) -> Answer {
    let body = json!({"path": path, "content_base64": STANDARD.encode(content), "mode": mode});
    let url = format!("{SESSIONS}/{id}/files/content");
    api.send("PUT", &url, &[], body.to_string().as_bytes())
}

fn escaped(path: &str) -> String {
    path.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn get(api: &Api, id: &str, what: &str, path: &str, more: &str) -> Answer {
    let path = escaped(path);
    api.get(&format!("{SESSIONS}/{id}/files{what}?path={path}{more}"))
}

fn delete(api: &Api, id: &str, path: &str, recursive: bool) -> Answer {
    let path = escaped(path);
    api.delete(&format!(
        "{SESSIONS}/{id}/files?path={path}&recursive={recursive}"
    ))
}

fn bytes_of(content: &Value) -> Vec<u8> {
    let text = content.as_str().expect("base64");
    STANDARD.decode(text).expect("base64")
}

#[test]
fn a_file_comes_back_as_it_was_put_and_the_ledger_has_its_digest_and_not_its_bytes() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let secret = marker();
    let content = format!("{secret}\0\u{fc}\n").into_bytes();
    let path = "/workspace/made for/it/ä file";
    let written = put(api, &id, path, &content, Some("750")).expect(200);
    assert_eq!(
        (&written["size"], &written["mode"]),
        (&json!(content.len()), &json!("0750"))
    );
    let read = get(api, &id, "/content", path, "").expect(200);
    assert_eq!(
        (bytes_of(&read["content_base64"]), &read["mode"]),
        (content.clone(), &json!("0750"))
    );
    let owner = "stat -c '%U %a' '/workspace/made for' '/workspace/made for/it'";
    assert_eq!(api.exec(&id, owner).text(), "root 755\nroot 755\n");
    let event = api.only_event(&id, "file.write");
    assert_eq!(
        event["data"]["digest"],
        blake3::hash(&content).to_hex().as_str()
    );
    assert_eq!(event["data"]["path"], path);
    assert!(!event.to_string().contains(&secret));
    let again = put(api, &id, path, b"short", None).expect(200);
    assert_eq!(
        (&again["replaced"], &again["mode"]),
        (&json!(true), &json!("0644"))
    );
    assert_eq!(api.exec(&id, &format!("cat '{path}'")).text(), "short");
    assert_eq!(delete(api, &id, path, false).status, 204);
    assert_eq!(
        get(api, &id, "/content", path, "").error(404),
        "file_not_found"
    );
    assert_eq!(api.only_event(&id, "file.delete")["data"]["size"], 5);
    api.remove(&id);
}

#[test]
fn a_listing_shows_links_modes_and_empty_folders_as_they_are() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let tree = "mkdir -p t/empty && echo x >t/run && chmod 4755 t/run && ln -s run t/link && \
                mkfifo t/pipe && touch -d @1000000000 t/run";
    assert_eq!(api.exec(&id, tree).exit_code, 0);
    let listed = get(api, &id, "", "/workspace/t", "").expect(200);
    assert_eq!(listed["kind"], "dir");
    let entries: Vec<_> = listed["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|it| (it["name"].as_str().unwrap(), it["type"].as_str().unwrap()))
        .collect();
    assert_eq!(
        entries,
        [
            ("empty", "dir"),
            ("link", "symlink"),
            ("pipe", "other"),
            ("run", "file")
        ]
    );
    assert_eq!(listed["entries"][1]["target"], "run");
    assert_eq!(listed["entries"][3]["mode"], "4755");
    assert_eq!(listed["entries"][3]["mtime"], 1_000_000_000);
    let one = get(api, &id, "", "/workspace/t/run", "").expect(200);
    assert_eq!((&one["kind"], &one["size"]), (&json!("file"), &json!(2)));
    api.remove(&id);
}

#[test]
fn ranges_add_up_to_the_file_and_its_digest() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let make = "head -c 9000000 /dev/urandom >big; sha256sum big | cut -d' ' -f1";
    let digest = api.exec(&id, make).text().trim().to_owned();
    let mut offset = 0_u64;
    let mut all = Vec::new();
    loop {
        let more = format!("&offset={offset}&checksum={}", offset == 0);
        let range = get(api, &id, "/range", "/workspace/big", &more).expect(200);
        if offset == 0 {
            assert_eq!(range["sha256"], digest.as_str());
        }
        let bytes = bytes_of(&range["data_base64"]);
        assert_eq!(range["length"], bytes.len());
        offset += bytes.len() as u64;
        all.extend(bytes);
        if range["eof"] == true {
            break;
        }
    }
    assert_eq!(all.len(), 9_000_000);
    let over = get(api, &id, "/range", "/workspace/big", "&length=4194305");
    assert_eq!(over.error(400), "invalid_field");
    let whole = get(api, &id, "/content", "/workspace/big", "");
    assert_eq!(whole.error(413), "file_too_large");
    api.remove(&id);
}

#[test]
fn c10_a_path_that_is_none_is_refused_before_anything_happens() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    for path in [
        "relative",
        "",
        "/a/../b",
        "/..",
        "/a\nb",
        "/a\0b",
        "/workspace/",
    ] {
        assert_eq!(
            put(api, &id, path, b"x", None).error(400),
            "invalid_field",
            "{path:?}"
        );
    }
    for path in ["/", "/etc", "/etc/", "//etc", "/./etc", "/workspace/../etc"] {
        assert_eq!(
            delete(api, &id, path, true).error(400),
            "invalid_field",
            "{path:?}"
        );
    }
    let long = format!("/{}", "x".repeat(256));
    assert_eq!(
        get(api, &id, "/content", &long, "").error(400),
        "invalid_field"
    );
    let big = vec![b'x'; 1_500_001];
    assert_eq!(
        put(api, &id, "/workspace/a", &big, None).error(413),
        "file_too_large"
    );
    let huge = vec![b'x'; 3_000_000];
    assert_eq!(
        put(api, &id, "/workspace/a", &huge, None).error(413),
        "body_too_large"
    );
    let just = vec![b'x'; 1_500_000];
    assert_eq!(
        put(api, &id, "/workspace/a", &just, None).expect(200)["size"],
        1_500_000
    );
    let bad = json!({"path": "/workspace/a", "content_base64": "?"}).to_string();
    let url = format!("{SESSIONS}/{id}/files/content");
    assert_eq!(
        api.send("PUT", &url, &[], bad.as_bytes()).error(400),
        "invalid_field"
    );
    assert_eq!(
        put(api, &id, "/workspace/a", b"", Some("888")).error(400),
        "invalid_field"
    );
    let kinds = api.kinds(&id);
    assert_eq!(kinds.iter().filter(|kind| *kind == "file.write").count(), 1);
    assert!(!kinds.contains(&"file.failed".to_owned()), "{kinds:?}");
    api.remove(&id);
}

#[test]
fn c10_links_and_nodes_that_an_agent_planted_lead_nowhere() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    // A file of the host that the sandbox must neither see nor change, in a folder of its own.
    let outside = tempfile::tempdir().expect("a folder");
    let kept = outside.path().join("kept");
    fs::write(&kept, "of the host").expect("a file");
    let host = outside.path().to_str().expect("text");
    let plant = format!(
        "ln -s /etc x; ln -s {host} host; ln -s /proc/1/root root; ln -s /proc/1/fd fds; \
         echo inside >file; ln file hard; mkfifo pipe; mknod node c 1 3; ln -s loop loop; true"
    );
    assert_eq!(api.exec(&id, &plant).exit_code, 0);
    let passwd = api.exec(&id, "sha256sum /etc/passwd").text().to_owned();
    for (path, code) in [
        ("/workspace/x/passwd", "symlink_in_the_way"),
        ("/workspace/x", "symlink_in_the_way"),
        ("/workspace/host/kept", "symlink_in_the_way"),
        ("/workspace/root/etc/passwd", "symlink_in_the_way"),
        ("/proc/1/root/etc/passwd", "symlink_in_the_way"),
        ("/proc/self/fd/0", "symlink_in_the_way"),
        ("/workspace/pipe", "not_a_file"),
        ("/workspace/file/below", "not_a_folder"),
    ] {
        assert_eq!(
            put(api, &id, path, b"evil", None).error(400),
            code,
            "{path}"
        );
    }
    for path in [
        "/workspace/x/passwd",
        "/workspace/host/kept",
        "/workspace/root/etc/passwd",
    ] {
        assert_eq!(
            delete(api, &id, path, true).error(400),
            "symlink_in_the_way",
            "{path}"
        );
    }
    for (path, status, code) in [
        ("/proc/1/root/etc/passwd", 400, "path_leads_outside"),
        ("/workspace/root/etc/passwd", 400, "path_leads_outside"),
        ("/workspace/fds/0", 400, "path_leads_outside"),
        ("/workspace/loop", 400, "path_leads_outside"),
        ("/workspace/pipe", 400, "not_a_file"),
        ("/dev/null", 400, "not_a_file"),
        ("/workspace/host/kept", 404, "file_not_found"),
    ] {
        let read = get(api, &id, "/content", path, "");
        assert_eq!((read.error(status), path), (code.to_owned(), path));
    }
    // Another name of a file keeps its bytes when the file is replaced.
    assert_eq!(put(api, &id, "/workspace/file", b"new", None).status, 200);
    assert_eq!(api.exec(&id, "cat hard").text(), "inside\n");
    // Links are removed, and what they point at stays.
    assert_eq!(delete(api, &id, "/workspace/x", true).status, 204);
    assert_eq!(delete(api, &id, "/workspace/host", true).status, 204);
    assert_eq!(api.exec(&id, "sha256sum /etc/passwd").text(), passwd);
    assert_eq!(fs::read_to_string(&kept).expect("there"), "of the host");
    assert_eq!(names(outside.path()), ["kept"]);
    let failed = api.events(&id);
    let failed = failed
        .iter()
        .filter(|event| event["kind"] == "file.failed")
        .count();
    assert_eq!(failed, 11, "every refusal of the guest is recorded");
    api.remove(&id);
}

/// Links, names and nodes of case C10 are what they are after a restore and in a fork, and lead no upload
/// anywhere.
#[test]
fn c10_what_an_agent_planted_comes_back_as_it_was_and_leads_no_upload_anywhere() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let outside = tempfile::tempdir().expect("a folder");
    let kept = outside.path().join("kept");
    fs::write(&kept, "of the host").expect("a file");
    let host = outside.path().to_str().expect("text");
    let plant = format!(
        "ln -s /etc x; ln -s {host} host; ln -s ../../../../..{host}/kept up; echo inside >file; \
         ln file hard; mkfifo pipe"
    );
    assert_eq!(api.exec(&id, &plant).exit_code, 0);
    let look = |id: &str| {
        let looked = api.exec(
            id,
            "readlink x host up; cat hard; stat -c '%h %F' file pipe",
        );
        looked.text().to_owned()
    };
    let before = look(&id);
    let _ = api.checkpoint(&id, "planted");
    assert_eq!(api.exec(&id, "rm -rf x host up hard").exit_code, 0);
    let _ = api.restore(&id, "planted");
    assert_eq!(look(&id), before);
    let children = api.fork(&id, 1);
    assert_eq!(look(&children[0]), before);
    for session in [&id, &children[0]] {
        for path in ["/workspace/host/kept", "/workspace/up", "/workspace/x/new"] {
            let opened = api.post(
                &format!("{SESSIONS}/{session}/uploads"),
                &json!({"path": path, "size": 4}),
            );
            let upload = opened.expect(201)["id"].as_str().expect("an id").to_owned();
            let url = format!("{SESSIONS}/{session}/uploads/{upload}");
            let sent = api.send("PUT", &format!("{url}?offset=0"), &[], b"evil");
            assert_eq!(sent.status, 200, "{}", sent.json());
            let put = api.post(&format!("{url}/complete"), &json!({}));
            assert_eq!(put.error(400), "symlink_in_the_way", "{path}");
        }
        let listed = get(api, session, "", "/workspace", "").expect(200);
        let entries = listed["entries"].as_array().expect("entries").iter();
        let links: Vec<_> = entries.filter(|it| it["type"] == "symlink").collect();
        assert_eq!(links.len(), 3, "{listed}");
    }
    assert_eq!(fs::read_to_string(&kept).expect("there"), "of the host");
    assert_eq!(names(outside.path()), ["kept"]);
    for session in [&id, &children[0]] {
        api.remove(session);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect()
}

#[test]
fn a_session_that_ended_and_a_session_of_nobody_take_no_files() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    api.remove(&id);
    assert_eq!(
        put(api, &id, "/workspace/a", b"x", None).error(409),
        "session_not_running"
    );
    assert_eq!(
        get(api, &id, "", "/workspace", "").error(409),
        "session_not_running"
    );
    let nobody = "00000000-0000-4000-8000-000000000000";
    assert_eq!(
        get(api, nobody, "", "/workspace", "").error(404),
        "session_not_found"
    );
    let without = api.get(&format!("{SESSIONS}/{id}/files"));
    assert_eq!(without.error(400), "missing_field");
}

#[test]
fn a_content_that_was_kept_can_be_erased_with_its_event() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let secret = marker();
    let seq =
        put(api, &id, "/workspace/secret", secret.as_bytes(), None).expect(200)["seq"].clone();
    let exported = api.get(&format!("{SESSIONS}/{id}/export?content=true"));
    let content = STANDARD.encode(secret.as_bytes());
    let holds = |body: &[u8]| String::from_utf8_lossy(body).contains(content.trim_end_matches('='));
    assert!(holds(&exported.body), "the content is kept");
    let erased = api.post(
        "/v1/ledger/redact",
        &json!({"seq": seq, "reason": "a test"}),
    );
    assert_eq!(erased.expect(200)["blobs"], 1);
    let exported = api.get(&format!("{SESSIONS}/{id}/export?content=true"));
    assert!(!holds(&exported.body), "the content is gone");
    assert!(!String::from_utf8_lossy(&exported.body).contains("/workspace/secret"));
    api.remove(&id);
}
