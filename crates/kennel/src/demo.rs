//! `kennel demo`: what Kennel does, shown on processes it starts itself, with times measured here.
#![expect(
    clippy::print_stdout,
    reason = "the demo is a show for the person who asked for it"
)]

use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_sys::tree::{self, Ladder, Launch, Report};

/// Quicker than Kennel's own, so that the show is short.
const LADDER: Ladder = Ladder {
    after_eof: Duration::from_millis(300),
    after_term: Duration::from_millis(300),
};
/// Nothing in the show takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// Ends when its stdin does, as a server should.
const POLITE: &str = "echo server $$; cat >/dev/null";
/// Ignores EOF and SIGTERM, and leaves two processes behind, one in a session of its own.
const STUBBORN: &str = "trap '' TERM HUP INT; sleep 1000 & echo helper $!; setsid sleep 1000 & echo helper $!; \
     echo server $$; while :; do sleep 1000; done";

/// A process of the show.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Part {
    /// An app whose server ends at EOF.
    Polite,
    /// An app whose server does not care.
    Stubborn,
}

/// Runs the show.
pub(crate) fn show() -> ExitCode {
    match acts() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("\nThe demo went wrong: {error}");
            ExitCode::FAILURE
        }
    }
}

fn acts() -> io::Result<()> {
    println!(
        "Kennel starts a server under a warden, which ends the server's whole tree when the app is gone."
    );

    println!("\n1. An app is killed with -9. Its server ends at EOF, as servers should.");
    let mut polite = Cast::enter(Part::Polite)?;
    polite.introduce();
    drop(polite.pipe.take());
    polite.kill_app()?;
    polite.all_gone("The pipe closed with the app")?;

    println!("\n2. The same, but another process keeps the pipe open, so that EOF never comes;");
    println!("   and this server ignores SIGTERM and has detached processes of its own.");
    let mut stubborn = Cast::enter(Part::Stubborn)?;
    stubborn.introduce();
    stubborn.kill_app()?;
    let rungs = LADDER.after_eof + LADDER.after_term;
    stubborn.all_gone(&format!(
        "The ladder waited {} ms for it to end by itself",
        rungs.as_millis()
    ))?;

    println!("\n3. The warden itself is killed with -9.");
    let mut orphaned = Cast::enter(Part::Stubborn)?;
    orphaned.introduce();
    orphaned.kill_warden()?;
    orphaned.all_gone("The server died with its warden; the app ended the rest")?;

    println!("\nNothing of this is left running.");
    Ok(())
}

/// An app, its warden, its server, and what the server started.
struct Cast {
    app: Child,
    /// The far end of the server's stdin: while it is open, there is no EOF.
    pipe: Option<PipeWriter>,
    everyone: Vec<(String, ProcessRef)>,
    struck: Instant,
}

impl Cast {
    fn enter(part: Part) -> io::Result<Cast> {
        let (stdin, pipe): (PipeReader, PipeWriter) = io::pipe()?;
        let word = match part {
            Part::Polite => "polite",
            Part::Stubborn => "stubborn",
        };
        let mut app = Command::new("/proc/self/exe")
            .args(["demo", word])
            .stdin(stdin)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut everyone = vec![("app".to_owned(), ProcessRef::open(app.id())?)];
        let stdout = app.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            let (role, pid) = line.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
            let pid = pid.parse().map_err(io::Error::other)?;
            everyone.push((role.to_owned(), ProcessRef::open(pid)?));
            // The server speaks last: then everyone is there.
            if role == "server" {
                break;
            }
        }
        Ok(Cast {
            app,
            pipe: Some(pipe),
            everyone,
            struck: Instant::now(),
        })
    }

    fn introduce(&self) {
        let named = |(role, process): &(String, ProcessRef)| format!("{role} {}", process.pid());
        let names: Vec<String> = self.everyone.iter().map(named).collect();
        println!("   running:  {}", names.join(", "));
    }

    fn kill_app(&mut self) -> io::Result<()> {
        self.struck = Instant::now();
        self.app.kill()
    }

    fn kill_warden(&mut self) -> io::Result<()> {
        let warden = self.everyone.iter().find(|(role, _)| role == "warden");
        let (_, warden) = warden.ok_or(io::ErrorKind::NotFound)?;
        self.struck = Instant::now();
        warden.signal(Signal::KILL).map(drop)
    }

    fn all_gone(&mut self, why: &str) -> io::Result<()> {
        let mut ends: Vec<(Duration, &str)> = Vec::new();
        for (role, process) in &self.everyone {
            if !process.wait(Some(PATIENCE))? {
                return Err(io::Error::other(format!(
                    "{role} {} is still there",
                    process.pid()
                )));
            }
            ends.push((self.struck.elapsed(), role));
        }
        let (last, _) = ends.iter().max().expect("the app at least");
        println!(
            "   all {} gone after {:.1} ms. {why}.",
            ends.len(),
            last.as_secs_f64() * 1000.0
        );
        self.app.wait().map(drop)
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        // Only where the show was broken off: end the app, and its warden does the rest.
        let _ = self.app.kill();
        let _ = self.app.wait();
    }
}

/// Plays the app: starts its server, and waits until nothing is left of it, or to be killed.
pub(crate) fn play(part: Part) -> ExitCode {
    match serve(part) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(part: Part) -> io::Result<()> {
    tree::become_subreaper()?;
    let script = match part {
        Part::Polite => POLITE,
        Part::Stubborn => STUBBORN,
    };
    let mut server = Launch {
        server: ["sh", "-c", script].map(Into::into).to_vec(),
        warden: vec!["/proc/self/exe".into(), "warden".into()],
        stdio: [
            copy_of(io::stdin())?,
            copy_of(io::stdout())?,
            copy_of(io::stderr())?,
        ],
        env: None,
        cwd: None,
        ladder: LADDER,
        records: None,
    }
    .start()?;
    println!("warden {}", server.warden().pid());
    while let Some(report) = server.next_report()? {
        if report == Report::Empty {
            return server.wait();
        }
    }
    server.wait()?;
    tree::end_strays(&[]).map(drop)
}

fn copy_of(stream: impl std::os::fd::AsFd) -> io::Result<OwnedFd> {
    stream.as_fd().try_clone_to_owned()
}
