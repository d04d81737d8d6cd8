//! `tk-daemon daemon ORDERS`: a fake daemon for tests of the election.
//!
//! A daemon gets no variables of its starter, so the file `script` in the runtime directory says what to do; without one it
//! serves. It signs the roll beside that directory, answers every client with a hello and a line, and echoes.
//!
//! | script | what it does |
//! |---|---|
//! | `slow MS` | waits before it is ready |
//! | `die` | ends before it is ready, with a line in its log |
//! | `fail` | reports that it failed |
//! | `hang` | is never ready |
//! | `stop N` | the first N daemons stop themselves before they are ready |
//! | `going N` | the first N daemons take no clients, and end |
//! | `deaf` | never answers a hello |
//! | `rude` | closes the connection instead of answering |
//! | `busy MS` | computes for this time before it answers |

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kennel_sys::lock::{Lock, Mode};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::sign_roll;
use serde_json::json;

fn main() {
    let orders = std::env::args().nth(2).expect("daemon ORDERS");
    let order = |name: &str| -> String {
        let value = orders
            .split(',')
            .find_map(|order| order.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    let fd = |name: &str| handed_down(order(name).parse().expect("a number"));
    let (spawn_lock, ready, first) = (fd("spawn"), fd("ready"), fd("first"));
    let mut ready = File::from(ready);

    let place = PathBuf::from(std::env::var_os("KENNEL_RUNTIME_DIR").expect("a place"));
    // Read before it signs: the test waits for the signature, and may then write another script for the next daemon.
    let script = std::fs::read_to_string(place.join("script")).unwrap_or_default();
    let number = sign(&place);
    let (word, amount) = script
        .trim()
        .split_once(' ')
        .unwrap_or((script.trim(), "0"));
    let amount: u64 = amount.parse().expect("a number");

    let user = RuntimeDir::ensure(&place).expect("the runtime directory");
    // As every Kennel process does.
    let _hold = user.hold().expect("the runtime directory is held");
    let daemons = user.subdir("daemons").expect("the daemons");
    let dir = daemons.subdir(order("key")).expect("our own directory");
    if !start_as_scripted(word, amount, number, &dir, &mut ready) {
        return;
    }

    let lock = Lock::acquire(&dir, "daemon.lock", Mode::Exclusive).expect("the only daemon");
    let identity = ProcessRef::me().expect("ourselves").identity().to_string();
    let generation = format!("g{}", std::process::id());
    let socket = dir
        .socket_path(format!("{generation}.sock"))
        .expect("a short path");
    let listener = UnixListener::bind(&socket).expect("a fresh generation");
    let record = json!({
        "identity": identity, "generation": generation, "version": "0", "since": 0,
        "name": "fake", "command": [], "cwd": "/",
    });
    dir.write_whole("daemon.json", record.to_string().as_bytes())
        .expect("a record");
    rustix::fs::flock(&spawn_lock, rustix::fs::FlockOperation::Unlock).expect("our own lock");
    drop(spawn_lock);
    ready
        .write_all(format!("ready {generation}\n").as_bytes())
        .ok();
    drop(ready);

    let going = word == "going" && number <= amount;
    let manner = Manner {
        generation,
        deaf: word == "deaf",
        rude: word == "rude",
        going,
        busy: Duration::from_millis(if word == "busy" { amount } else { 0 }),
    };
    std::thread::scope(|threads| {
        let first = threads.spawn(|| manner.serve(first.into()));
        if going {
            first.join().expect("it was told");
            std::fs::remove_file(&socket).ok();
            drop(lock);
            std::process::exit(0);
        }
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let manner = &manner;
            threads.spawn(move || manner.serve(client));
        }
    });
}

/// What the script says to do before the daemon is ready. `false` if it ends instead.
fn start_as_scripted(
    word: &str,
    amount: u64,
    number: u64,
    dir: &RuntimeDir,
    ready: &mut File,
) -> bool {
    match word {
        "slow" => pause(Duration::from_millis(amount)),
        "die" => {
            std::fs::write(dir.path().join("log"), "one\nout of luck\n").expect("a log");
            return false;
        }
        "fail" => {
            ready
                .write_all(b"failed no luck today\n")
                .expect("a reader");
            return false;
        }
        "hang" => pause(Duration::from_secs(1000)),
        "stop" if number <= amount => {
            let me = ProcessRef::me().expect("ourselves");
            me.signal(kennel_sys::Signal::STOP).expect("ourselves");
        }
        _ => {}
    }
    true
}

/// How it treats its clients.
struct Manner {
    generation: String,
    deaf: bool,
    rude: bool,
    going: bool,
    busy: Duration,
}

impl Manner {
    fn serve(&self, mut client: UnixStream) {
        let mut lines = BufReader::new(client.try_clone().expect("a copy")).lines();
        let Some(Ok(_hello)) = lines.next() else {
            return;
        };
        if self.deaf {
            pause(Duration::from_secs(1000));
        }
        if self.rude {
            // Even if there are copies of the socket.
            client.shutdown(Shutdown::Both).ok();
            return;
        }
        let end = Instant::now() + self.busy;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        if self.going {
            client.write_all(b"!going\n").ok();
            return;
        }
        let hello = json!({ "version": "0", "protocol": 1, "generation": self.generation, "checks_keys": true, "key_version": 3 });
        // In one write, to test that the lines after the hello are not lost.
        let words = format!("!later {{}}\n!hello {hello}\n{{\"behind\":1}}\n");
        client.write_all(words.as_bytes()).ok();
        for line in lines.map_while(Result::ok) {
            client.write_all(format!("{line}\n").as_bytes()).ok();
        }
    }
}

/// Signs the roll, so that the test finds this process. Returns the number of the signature, from 1.
fn sign(place: &Path) -> u64 {
    let roll = place.parent().expect("a scope").join("roll");
    sign_roll(&roll);
    let text = std::fs::read_to_string(&roll).expect("the roll");
    text.lines().count() as u64
}

/// A copy of an inherited descriptor. The original stays open until the end, which does no harm here.
fn handed_down(fd: RawFd) -> OwnedFd {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let me = pidfd_open(getpid(), PidfdFlags::empty()).expect("ourselves");
    pidfd_getfd(me, fd, PidfdGetfdFlags::empty()).expect("a descriptor that was handed down")
}

#[expect(clippy::disallowed_methods, reason = "a daemon that does nothing")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
