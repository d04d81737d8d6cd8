//! Background jobs that Kennel did not start, innocent ones and real orphans. Rule: `kennel reap --foreign` ends only the
//! orphans.

use std::io::{Error, Result};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kennel_sys::{Signal, events};
use kennel_testkit::{Rng, Subject, bin};

use crate::rules::entries;
use crate::world::World;

/// Maximum number of job processes in a world.
const MOST: usize = 40;
/// Maximum time for the jobs of a step to start on a busy machine, and the interval for checking that.
const TIME_LIMIT: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(5);
/// Environment variable that marks the processes of one step.
const MARK: &str = "CHAOS_JOBS";

/// A process of a background job.
#[derive(Debug)]
pub(crate) struct JobProcess {
    pub(crate) process: Subject,
    pub(crate) line: String,
    pub(crate) is_orphan: bool,
}

/// Starts random jobs, and `kennel reap --foreign --yes`, which `World::kennel` restricts to processes of this world.
pub(crate) fn start_and_reap(world: &mut World, how: u64) -> Result<String> {
    let output = match world.jobs.len() < MOST {
        true => start(world, Script::draw(how), how)?,
        false => "limit reached".to_owned(),
    };
    world.run(&["reap", "--foreign", "--yes"])?;
    // Until it has ended, no other step may open a pidfd of an orphan, which would spare it.
    let begun = Instant::now();
    while begun.elapsed() < TIME_LIMIT
        && world.commands.last_mut().is_some_and(|it| !it.has_ended())
    {
        let _ = events::sleep(&[], &[], Some(INTERVAL));
    }
    Ok(output)
}

/// Innocent processes that have ended. Only `kennel reap` has a reason to end them.
pub(crate) fn ended_innocents(world: &World) -> Vec<String> {
    let innocents = world.jobs.iter().filter(|it| !it.is_orphan);
    let ended = innocents.filter(|it| !it.process.is_alive());
    ended
        .map(|it| format!("{} ({}) has ended", it.process.pid(), it.line))
        .collect()
}

/// Orphans that live after every `kennel reap --foreign` has ended.
pub(crate) fn missed_orphans(world: &mut World) -> Vec<String> {
    world
        .jobs
        .retain(|it| !it.is_orphan || it.process.is_alive());
    let mut reaps = world.commands.iter_mut();
    if reaps.any(|it| it.name.contains("reap --foreign") && !it.has_ended()) {
        return Vec::new();
    }
    let orphans = world.jobs.iter().filter(|it| it.is_orphan);
    orphans
        .map(|it| format!("{} ({}) was not ended", it.process.pid(), it.line))
        .collect()
}

/// Runs a script in a new session, as a terminal does, and waits until exactly the expected processes are left.
fn start(world: &mut World, script: Script, how: u64) -> Result<String> {
    let dir = world.stash.path(format!("jobs-{how:x}"));
    std::fs::create_dir_all(&dir)?;
    let programs = bin("tk-parent");
    let programs = programs.parent().unwrap_or(Path::new("/"));
    let mut path = programs.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mark = format!("{MARK}={how:x}");
    let mut bash = world.command("setsid");
    bash.args(["bash", "-c", &script.lines])
        .current_dir(dir)
        .env(MARK, format!("{how:x}"))
        .env("P", programs)
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut bash = bash.spawn()?;
    let mut expected = [&script.innocents[..], &script.orphans].concat();
    expected.sort_unstable();
    let begun = Instant::now();
    loop {
        let there = members(bash.id(), &mark);
        let mut lines: Vec<&String> = there.iter().map(|(_, line)| line).collect();
        lines.sort_unstable();
        if lines.iter().copied().eq(&expected) {
            world
                .jobs
                .extend(there.into_iter().map(|(process, line)| JobProcess {
                    is_orphan: script.orphans.contains(&line),
                    process,
                    line,
                }));
            break;
        }
        if begun.elapsed() > TIME_LIMIT {
            let why = format!("{lines:?} run instead of {expected:?}");
            for (process, _) in &there {
                let _ = process.signal(Signal::KILL);
            }
            let _ = bash.kill();
            let _ = bash.wait();
            return Err(Error::other(why));
        }
        let _ = events::sleep(&[], &[], Some(INTERVAL));
    }
    bash.wait()?;
    let lines = script.lines.trim_end().replace('\n', " ; ");
    Ok(format!("{lines} (orphans: {:?})", script.orphans))
}

/// The processes of a step with their command lines. A process that exits loses its environment before it closes its
/// files, so those of the session count too.
fn members(session: u32, mark: &str) -> Vec<(Subject, String)> {
    let is_member = |dir: &Path| {
        let stat = std::fs::read_to_string(dir.join("stat")).unwrap_or_default();
        // 4711 (name) S parent group session …
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        let fields: Vec<&str> = fields.unwrap_or_default().split(' ').collect();
        let [state, _, _, its_session, ..] = fields[..] else {
            return false;
        };
        let environ = || std::fs::read(dir.join("environ")).unwrap_or_default();
        let is_marked = || {
            environ()
                .split(|&byte| byte == 0)
                .any(|it| it == mark.as_bytes())
        };
        !["Z", "X"].contains(&state) && (its_session == session.to_string() || is_marked())
    };
    let processes = entries(Path::new("/proc")).into_iter().filter_map(|dir| {
        let pid = dir.file_name()?.to_str()?.parse().ok()?;
        let process = Subject::open(pid).filter(|_| is_member(&dir))?;
        let line = process.command_line().unwrap_or_default().join(" ");
        Some((process, line))
    });
    processes.collect()
}

/// Lines of bash that start background jobs, and the command lines of the processes that stay. `$P` is the directory of the
/// testkit's programs.
#[derive(Debug)]
struct Script {
    chance: Rng,
    first: u64,
    lines: String,
    innocents: Vec<String>,
    orphans: Vec<String>,
}

impl Script {
    fn draw(how: u64) -> Script {
        let mut script = Script {
            chance: Rng::of(how, "jobs"),
            first: 10_000 + how % 900 * 100,
            lines: String::new(),
            innocents: Vec::new(),
            orphans: Vec::new(),
        };
        let shapes = [
            Script::pipeline,
            Script::server,
            Script::substitution,
            Script::writer,
            Script::starter,
        ];
        for _ in 0..1 + script.chance.below(4) {
            let line = script.pick(&shapes)(&mut script);
            script.lines.push_str(&line);
            script.lines.push('\n');
        }
        script
    }

    fn pick<T: Copy>(&mut self, those: &[T]) -> T {
        those[self.chance.below(those.len() as u64) as usize]
    }

    /// A number that is unique within this step, and rarely equals one of another step, because reports contain it.
    fn number(&self) -> u64 {
        self.first + (self.innocents.len() + self.orphans.len()) as u64
    }

    /// A command that stays, with a unique command line.
    fn idle(&mut self, is_orphan: bool) -> String {
        let line = format!("tk-idle {}", self.number());
        match is_orphan {
            true => self.orphans.push(line.clone()),
            false => self.innocents.push(line.clone()),
        }
        line
    }

    /// A pipeline of stages that exit, exit with a line unread in the pipe, or stay. An orphan is a stage that stays
    /// between two that have exited, without unread input.
    fn pipeline(&mut self) -> String {
        const EXITS: &str = "true";
        const WRITES: &str = "echo x";
        const STAYS: &str = "tk-idle";
        let count = 2 + self.chance.below(5);
        let stages: Vec<&str> = (0..count)
            .map(|_| self.pick(&[EXITS, WRITES, STAYS]))
            .collect();
        let mut words: Vec<String> = Vec::new();
        for (at, &stage) in stages.iter().enumerate() {
            let has_exited = |it: Option<&&str>| it.is_some_and(|&it| it != STAYS);
            let abandoned = at > 0 && stages[at - 1] == EXITS && has_exited(stages.get(at + 1));
            words.push(match stage {
                STAYS => self.idle(abandoned),
                _ => stage.to_owned(),
            });
        }
        format!("{} >out{} &", words.join(" | "), self.number())
    }

    /// A server and its client on loopback or a Unix socket, both with abandoned stdin and stdout.
    fn server(&mut self) -> String {
        let number = self.number();
        if self.pick(&[true, false]) {
            self.innocents.push("server 127.0.0.1:0".to_owned());
            let client = self.idle(false);
            return format!(
                "true | (exec -a server $P/tk-ports 127.0.0.1:0) | sed 's/listening //;q' >port{number} & \
                 until [ -s port{number} ]; do sleep 0.01; done; \
                 true | {client} 3<>/dev/tcp/127.0.0.1/$(<port{number}) | true &"
            );
        }
        let place = format!("sock{number}");
        let server = format!("server back {place} roll{number}");
        let client = format!("client {place}");
        self.innocents.extend([server, client]);
        format!(
            "true | (exec -a server $P/tk-backend back {place} roll{number}) | true & \
             until [ -s roll{number} ]; do sleep 0.01; done; \
             true | (exec -a client $P/tk-visitor {place}) | true &"
        )
    }

    /// A job that a process substitution reads from or writes to.
    fn substitution(&mut self) -> String {
        let job = self.idle(false);
        let number = self.number();
        match self.pick(&["2", "3", ""]) {
            "" => format!("true | {job} 3< <({}) >out{number} &", self.idle(false)),
            descriptor => {
                self.innocents.push("cat".to_owned());
                format!("true | {job} {descriptor}> >(cat >out{number}) | true &")
            }
        }
    }

    /// A job whose output is a file, or one with abandoned stdin and stdout that writes to a file from time to time.
    fn writer(&mut self) -> String {
        const LOOP: &str = "while :; do echo x >&3; read -t 0.02 -u 4; done";
        let job = self.idle(false);
        let number = self.number();
        if self.pick(&[true, false]) {
            return format!("true | {job} >out{number} &");
        }
        self.innocents.push(format!("bash -c {LOOP}"));
        // The pipe of descriptor 4 is only for the timeout of `read`, which starts no process.
        format!("true | bash -c '{LOOP}' 3>out{number} 4< <({job}) | true &")
    }

    /// A server on stdio whose starter is killed: an orphan, unless another process holds its stdin.
    fn starter(&mut self) -> String {
        let held = self.pick(&[true, false]);
        let launched = self.pick(&[true, false]);
        let channel = self.pick(&["", "socket"]);
        let number = self.number();
        let server = self.idle(!held);
        if launched {
            let launcher = format!("sh -c \"$0\" \"$@\"; : {server}");
            match held {
                true => self.innocents.push(launcher),
                false => self.orphans.push(launcher),
            }
        }
        if held {
            self.innocents.push("sleep 1000".to_owned());
        }
        let hold = if held { "hold" } else { "" };
        let launcher = if launched { "launcher" } else { "" };
        format!(
            "$P/tk-parent {channel} {hold} {launcher} -- {server} >child{number} & \
             until [ -s child{number} ]; do sleep 0.01; done; kill -9 $!; wait $!"
        )
    }
}
