"""Drives a guest daemon with the published client, call by call.

Arguments: endpoint, token, the host's tunnel seed, the guest's public key, a scratch folder that
the guest sees too, and `root` where commands can take other users. The guest's /workspace and
/usr/local/bin have to be this test's own.
Prints one line for each call that holds, and ends with an assertion at the first that does not.
"""

import asyncio
import io
import os
import socket
import sys
import tarfile
import threading
import time

import microvms

endpoint, token, host_seed, vm_public_key, scratch, rights = sys.argv[1:]
session = microvms.Session.direct(endpoint, token)


def holds(name, condition, seen=None):
    assert condition, f"{name}: {seen!r}"
    print(f"holds: {name}", flush=True)


session.wait_until_ready()
health = session.health()
holds("health", health.bootstrapped and not health.identity_degraded, health)
holds("discovery", session.discovery().default_user is None)

# Commands.
result = session.run_sync(["sh", "-c", "echo out; echo err >&2; exit 3"])
holds("run_sync", (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n"), result)
result = session.run_sync("echo $A", shell=True, env={"A": "b"}, cwd="/")
holds("shell", (result.exit_code, result.stdout) == (0, "b\n"), result)
result = session.run_sync("echo $0", shell="sh")
holds("named shell", result.exit_code == 0, result)
result = session.run_sync(["sleep", "60"], timeout_sec=0.2)
holds("deadline", result.timed_out and result.signal == 15, result)
seen = []
result = session.run_to_completion(
    ["sh", "-c", "printf 'a\\377b'; exit 0"], on_output=seen.append
)
holds("run_to_completion", result.exit_code == 0 and len(seen) > 0, (result, seen))
big = session.run_to_completion(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"])
holds("3 MB of output", len(big.stdout) == 3_000_000, len(big.stdout))

# A command that is followed, written to and killed.
process = session.spawn(["cat"], stdin=True, exec_id="followed")
handle = session.exec("followed")
ack = handle.write_stdin(b"hello\n")
holds("write_stdin", ack.written == 6 and not ack.eof, ack)
holds("close_stdin", handle.close_stdin().eof)
result = process.wait(timeout=20)
holds("spawn and wait", result.exit_code == 0, result)
out = b"".join(bytes(piece) for piece in process.stdout)
holds("stdout of a followed command", out == b"hello\n", out)
holds("ack", session.exec("followed").ack().exit_code == 0)
try:
    session.exec("nobody").poll()
    holds("an unknown exec raises", False)
except microvms.MicrovmError as error:
    holds("an unknown exec raises", "unknown_exec" in str(error), error)

process = session.spawn("sleep 300 & sleep 300", shell=True, exec_id="killed")
procs = {group.exec_id: group for group in session.procs()}
holds("procs", len(procs["killed"].pids) >= 1 and not procs["killed"].child_exited, procs)
holds("kill", session.kill("killed"))
result = process.wait(timeout=20)
holds("a killed command tells its signal", (result.exit_code, result.signal) == (None, 15), result)

# Files and trees.
path = os.path.join(scratch, "made", "file")
session.upload_file(path, b"1\n2\n3\n", mode="0600")
holds("upload_file", os.stat(path).st_mode & 0o777 == 0o600)
holds("download_file", session.download_file(path) == b"1\n2\n3\n")
holds("a range of lines", session.download_file(path, start_line=2, end_line=2) == b"2\n")
holds("file_exists", session.file_exists(path) and not session.file_exists(path + "x"))
try:
    session.download_file(path + "x")
    holds("an absent file raises", False)
except microvms.MicrovmError as error:
    holds("an absent file raises", True)
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w") as archive:
    for name in ["a/b.txt", "a/" + "long" * 40]:
        member = tarfile.TarInfo(name)
        member.size = 4
        archive.addfile(member, io.BytesIO(b"text"))
    member = tarfile.TarInfo("a/link")
    member.type, member.linkname = tarfile.SYMTYPE, "b.txt"
    archive.addfile(member)
tree = os.path.join(scratch, "tree")
session.upload_tar(tree, packed.getvalue())
back = bytes(session.download_tar(tree))
names = sorted(tarfile.open(fileobj=io.BytesIO(back)).getnames())
holds("a tree goes up and down", len(names) == 5 and "./a/link" in names, names)
local = os.path.join(scratch, "local")
os.mkdir(local)
files = session.download_dir(tree, local, ["**/*.txt"])
holds("download_dir", len(files) == 1, files)
try:
    session.upload_tar(tree, b"garbage" * 1000)
    holds("garbage raises", False)
except microvms.MicrovmError as error:
    holds("garbage raises", "tar operation failed" in str(error), error)

# Tunnels, to a server that answers each line in capitals.
server = socket.create_server(("127.0.0.1", 0))


def serve():
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("rwb") as stream:
            for line in stream:
                stream.write(line.upper())
                stream.flush()


threading.Thread(target=serve, daemon=True).start()
identity = microvms.TunnelIdentity(host_seed, vm_public_key)
for name, pinned in [("plain", None), ("verified", identity)]:
    with session.tunnel(server.getsockname()[1], verify_identity=pinned) as tunnel:
        host, port = tunnel.local_address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(b"through the tunnel\n")
            got = client.makefile("rb").readline()
            holds(f"a {name} tunnel", got == b"THROUGH THE TUNNEL\n", got)


# A port that is forwarded, to a server that answers anything in HTTP.
web = socket.create_server(("127.0.0.1", 0))


def serve_web():
    while True:
        connection, _ = web.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")


def fetched(forward):
    host, port = forward.local_address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as client:
        # The forward answers nobody who names another host than its own.
        request = f"GET / HTTP/1.1\r\nhost: {forward.local_address}\r\nconnection: close\r\n\r\n"
        client.sendall(request.encode())
        return client.makefile("rb").read()


threading.Thread(target=serve_web, daemon=True).start()
forward = session.port_forward(web.getsockname()[1])
answer = fetched(forward)
holds("port_forward", answer.endswith(b"hi"), answer)
report = forward.stop(timeout=20)
holds("the forward's report", report.served == 1 and report.refused == 0, report)
tunnel = session.tunnel(1)
with socket.create_connection(tunnel.local_address.rsplit(":", 1), timeout=20) as client:
    client.recv(1)
ended = tunnel.stop(timeout=20).ended
holds("a tunnel to nobody", [end.code for end in ended] == [4502], ended)
holds("connect_headers", not session.connect_headers(9) and not session.connect_subprotocols(9))

# A folder that is kept in step with the guest's /workspace.
synced = os.path.join(scratch, "synced")
os.makedirs(os.path.join(synced, "deep"))
for name in ["deep/file", "stays"]:
    with open(os.path.join(synced, name), "w") as file:
        file.write(name)
report = session.sync_dir(synced)
holds("sync_dir", report.full and report.uploaded_members >= 2, report)
holds("sync_dir, unchanged", session.sync_dir(synced).unchanged)
os.remove(os.path.join(synced, "deep/file"))
report = session.sync_dir(synced, delete_timeout=20)
holds("sync_dir, a difference", report.deleted >= 1 and not report.full, report)
holds("the guest is in step", not session.file_exists("/workspace/deep/file"))
holds("what stayed", session.download_file("/workspace/stays") == b"stays")


# What it builds on a session for command line assistants, with a stand-in for the program.
def assisted():
    expiry = int(time.time()) + 3600
    token = microvms.mint_bedrock_token_with_credentials(
        microvms.Region.us_east_1(),
        access_key_id="id-of-nobody",
        secret_access_key="secret-of-nobody",
        credentials_expires_at=expiry,
    )
    spec = microvms.AgentSpec("codex")
    try:
        microvms.install_agent_access(session, [spec], token)
    except microvms.MicrovmError as error:
        # The last step gives the folder to another user, which nobody but root can.
        holds("a folder that cannot be given away", rights != "root", error)
        return
    told = microvms.installed_agents(session)
    holds("install_agent_access, installed_agents", [one.agent for one in told] == ["codex"], told)
    program = b"#!/bin/sh\nprintf '%s ' \"$@\"\n"
    session.upload_file("/usr/local/bin/codex", program, mode="0755")
    result = microvms.prompt_agent(session, spec, "it's a task").wait_and_ack()
    holds("prompt_agent", "it's a task" in result.stdout, result)


assisted()


# A watcher that polls while something runs, and ends when nothing does.
busy = session.run(["sleep", "1.2"])
report = session.keep_awake(interval=1, while_busy=True, max_duration=20).wait(timeout=20)
holds("keep_awake", report is not None and report.polls >= 2 and not report.last_busy, report)
holds("run, wait_and_ack", busy.wait_and_ack().exit_code == 0)
handle = session.run("echo streamed; exit 5", shell=True)
pieces = list(handle.stream())
holds("a handle's stream", len(pieces) > 0, pieces)
holds("a handle's wait and poll", handle.wait().exit_code == 5 and handle.poll() is not None)


# The awaitable twins.
async def awaited():
    health, procs, result = await asyncio.gather(
        session.health_async(),
        session.procs_async(),
        session.run_sync_async(["sh", "-c", "cat; exit 4"]),
    )
    holds("awaited calls", health.bootstrapped and result.exit_code == 4 and procs is not None)
    await session.upload_file_async(path, b"awaited")
    holds("awaited files", await session.download_file_async(path) == b"awaited")
    holds("awaited file_exists", await session.file_exists_async(path))
    await session.wait_until_ready_async()
    holds("awaited discovery", (await session.discovery_async()).default_user is None)
    twin = os.path.join(scratch, "twin")
    await session.upload_tar_async(twin, packed.getvalue())
    again = io.BytesIO(bytes(await session.download_tar_async(twin)))
    holds("awaited trees", len(tarfile.open(fileobj=again).getnames()) == 5)
    mirror = os.path.join(scratch, "mirror")
    os.mkdir(mirror)
    brought = await session.download_dir_async(twin, mirror, ["**/*.txt"])
    holds("awaited download_dir", len(brought) == 1, brought)
    whole = await session.run_to_completion_async(["sh", "-c", "echo whole"])
    holds("awaited run_to_completion", whole.stdout == "whole\n", whole)
    started = await session.run_async(["cat"], stdin=True)
    await started.write_stdin_async(b"typed\n")
    await started.close_stdin_async()
    ended = await started.wait_and_ack_async()
    holds("awaited handle", (ended.exit_code, ended.stdout) == (0, "typed\n"), ended)
    report = await session.sync_dir_async(synced, full=True)
    holds("awaited sync_dir", report.full, report)
    web_forward = await session.port_forward_async(web.getsockname()[1])
    answer = await asyncio.to_thread(fetched, web_forward)
    holds("awaited port_forward", answer.endswith(b"hi"), answer)
    await web_forward.stop_async(timeout=20)
    pinned = await session.tunnel_async(server.getsockname()[1], verify_identity=identity)
    holds("awaited tunnel", pinned.running)
    await pinned.stop_async(timeout=20)
    headers = await session.connect_headers_async(9), await session.connect_subprotocols_async(9)
    holds("awaited connect_headers", not any(headers), headers)
    sleeper = await session.spawn_async(["sleep", "300"])
    holds("awaited kill", await session.kill_async(sleeper.exec_id))
    holds("awaited wait", (await sleeper.wait_async()).signal == 15)


asyncio.run(awaited())
print("all hold", flush=True)
