//! A guarded server: from the kill of its owner to nothing left, beyond the grace; and what it costs to watch a
//! thousand connections once the owner is gone.

use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::stats::{micros, percentile};
use crate::{Options, Outcome, beside_us};

/// How long nobody must be connected.
const GRACE: Duration = Duration::from_millis(500);
/// No more beyond it.
const LATE: Duration = Duration::from_millis(500);
/// How many are connected.
const CONNECTIONS: usize = 1000;
/// How much of a core watching them may take.
const SHARE: f64 = 0.01;

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    kennel_sys::limits::raise_descriptors();
    let dir = std::env::temp_dir().join(format!("kennel-bench-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let measured = measure(options, &dir);
    std::fs::remove_dir_all(&dir)?;
    let (late, watching) = measured?;
    Ok(report(options, &late, &watching))
}

/// A way to see connections, and the share of a core that it took.
type Watching = [(&'static str, f64); 2];

/// The time beyond the grace of each death, and what watching took in each way to see connections.
fn measure(options: &Options, dir: &Path) -> io::Result<(Vec<Duration>, Watching)> {
    let deaths = (0..options.count(40, 3)).map(|_| one_death(dir));
    let mut late = deaths.collect::<io::Result<Vec<Duration>>>()?;
    late.sort();
    let seconds = if options.quick { 1 } else { 20 };
    let watch = |off| share_of_a_core(dir, off, Duration::from_secs(seconds));
    let watching = [
        ("sock_diag", watch("")?),
        ("/proc/net", watch("sock-diag")?),
    ];
    Ok((late, watching))
}

/// A guarded server with an owner.
struct Scene {
    owner: Child,
    guard: Child,
    port: u16,
}

impl Scene {
    fn set(dir: &Path, off: &str) -> io::Result<Scene> {
        let owner = Command::new("sleep").arg("1000").spawn()?;
        let mut guard = Command::new(beside_us("kennel")?)
            .args(["guard", "--grace", &format!("{}ms", GRACE.as_millis())])
            .args(["--owner-pid", &owner.id().to_string(), "--"])
            .arg(beside_us("tk-ports")?)
            .arg("127.0.0.1:0")
            .env("KENNEL_RUNTIME_DIR", dir.join("run"))
            .env("KENNEL_FEATURES_OFF", off)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stdout = guard.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        BufReader::new(stdout).read_line(&mut line)?;
        let port = line.trim().strip_prefix("listening ").unwrap_or_default();
        let port = port.parse().map_err(io::Error::other)?;
        Ok(Scene { owner, guard, port })
    }

    fn kill_owner(&mut self) -> io::Result<()> {
        self.owner.kill()?;
        self.owner.wait().map(drop)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in [&mut self.owner, &mut self.guard] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn one_death(dir: &Path) -> io::Result<Duration> {
    let mut scene = Scene::set(dir, "")?;
    let killed = Instant::now();
    scene.kill_owner()?;
    // The guard ends when nothing is left of the server's tree.
    scene.guard.wait()?;
    let took = killed.elapsed();
    if TcpStream::connect(("127.0.0.1", scene.port)).is_ok() {
        return Err(io::Error::other("its port is still open"));
    }
    Ok(took.saturating_sub(GRACE))
}

fn share_of_a_core(dir: &Path, off: &str, time: Duration) -> io::Result<f64> {
    let mut scene = Scene::set(dir, off)?;
    let connect = |_| TcpStream::connect(("127.0.0.1", scene.port));
    let connections = (0..CONNECTIONS).map(connect);
    let connections = connections.collect::<io::Result<Vec<TcpStream>>>()?;
    scene.kill_owner()?;
    // The first look is over, with all that is done but once.
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_secs(1)))?;
    let (before, start) = (on_processor(scene.guard.id())?, Instant::now());
    kennel_sys::events::sleep(&[], &[], Some(time))?;
    let (after, took) = (on_processor(scene.guard.id())?, start.elapsed());
    drop(connections);
    Ok((after - before).as_secs_f64() / took.as_secs_f64())
}

/// How long a process of one thread has been on a processor, to the nanosecond.
fn on_processor(pid: u32) -> io::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let nanos = text.split_whitespace().next().unwrap_or_default();
    nanos
        .parse()
        .map(Duration::from_nanos)
        .map_err(io::Error::other)
}

fn report(options: &Options, late: &[Duration], watching: &[(&str, f64)]) -> Outcome {
    let millis = |percent| micros(percentile(late, percent)) / 1000.0;
    let (p50, longest) = (millis(50), millis(100));
    let worst = watching.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    let within = percentile(late, 100) <= LATE && worst <= SHARE;
    let outcome = if within { Outcome::Pass } else { Outcome::Fail };
    let shares: serde_json::Map<_, _> = watching
        .iter()
        .map(|(name, share)| ((*name).to_owned(), json!(share)))
        .collect();
    let json = json!({"benchmark": "guard", "late_p50_ms": p50, "late_longest_ms": longest, "watching": shares, "pass": within});
    options.tell(json, || print(late, watching, [p50, longest], outcome));
    outcome
}

fn print(late: &[Duration], watching: &[(&str, f64)], [p50, longest]: [f64; 2], outcome: Outcome) {
    println!(
        "A guarded server whose owner is killed, {} times:",
        late.len()
    );
    println!("  nothing left p50 {p50:.1} ms after the grace, longest {longest:.1} ms");
    println!("Watching {CONNECTIONS} connections once the owner is gone, as a share of a core:");
    for (name, share) in watching {
        println!("  {:.3} %  by {name}", share * 100.0);
    }
    println!(
        "{}: at most {} ms after the grace, at most {:.0} % of a core",
        outcome.word(),
        LATE.as_millis(),
        SHARE * 100.0
    );
}
