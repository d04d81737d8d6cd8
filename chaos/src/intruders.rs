//! Confined processes that connect to the daemons of unconfined sessions, as a process in a sandbox could.

use std::fs::File;
use std::io::Result;
use std::path::PathBuf;
use std::process::Stdio;

use kennel_testkit::bin;
use serde_json::json;

use crate::world::World;

/// The file that a command of an intruder creates: its `/proc/self/status`.
pub(crate) fn mark(world: &World) -> PathBuf {
    world.stash.path("intruded")
}

/// An intruder says hello to a daemon. It is not waited for, because the daemon may be stopped.
pub(crate) fn connect_confined(world: &mut World, target: u64, how: u64) -> Result<String> {
    let sockets = sockets(world);
    let place = (target as usize).checked_rem(sockets.len());
    let Some(socket) = place.map(|place| &sockets[place]) else {
        return Ok("no process".to_owned());
    };
    let hello = hello(world)?;
    let confined = ["no-new-privs", "seccomp"][(how % 2) as usize];
    let mut command = world.command(bin("tk-visitor"));
    command
        .arg(socket)
        .arg(confined)
        .stdin(File::open(hello)?)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    world.intruders.push(command.spawn()?);
    Ok(format!("{} under {confined}", socket.display()))
}

fn sockets(world: &World) -> Vec<PathBuf> {
    let entries = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let keys = entries(world.scope.runtime_dir().join("daemons"));
    let mut sockets: Vec<PathBuf> = keys
        .flat_map(|key| entries(key.path()))
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|end| end == "sock"))
        .collect();
    sockets.sort();
    sockets
}

/// The file with the messages of all intruders: a hello with a command and a newer build that leave a mark, and a request.
fn hello(world: &World) -> Result<PathBuf> {
    let path = world.stash.path("intruder");
    let program = world.stash.path("trap");
    if !path.exists() {
        let script = format!(
            "#!/bin/sh\ncat /proc/self/status >'{}'\n",
            mark(world).display()
        );
        std::fs::write(&program, script)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode)?;
        let hello = json!({
            "version": "99.0.0", "protocol": 1, "pid": 1, "identity": "", "session": "intruder",
            "spec": {"command": [program], "cwd": "/", "ladder": [50, 50]},
            "env": [["PATH", "/usr/bin:/bin"]], "build": "99.0.0", "program": program,
            "key": {"version": 2},
        });
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        std::fs::write(&path, format!("!hello {hello}\n{request}\n"))?;
    }
    Ok(path)
}
