//! Schedules, drawn from a seed and a number: the settings of a world, and what happens in it.

use std::fmt;
use std::time::Duration;

use kennel_testkit::Rng;

use crate::app::Era;
use crate::kernel::Shortage;
use crate::request_log::Tool;

/// An act of a schedule. It names the `nth` of the present processes, so that it stays meaningful if earlier acts are
/// left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// An app starts, with a shim.
    StartApp(Era),
    /// An app sends a request that takes this many milliseconds.
    Request(usize, Tool, u64),
    /// An app writes a long malformed line.
    WriteMalformed(usize),
    /// An app cancels one of its requests.
    Cancel(usize, usize),
    /// An app closes its side.
    CloseApp(usize),
    /// A process is killed.
    Kill(Role, usize),
    /// A process is stopped.
    Stop(Role, usize),
    /// A stopped process is continued.
    Continue(Role, usize),
    /// A daemon hangs: it lives and does nothing.
    HangDaemon(usize),
    /// A person stops a daemon.
    StopDaemon(usize),
    /// A newer build becomes available to a daemon; `true` if it starts.
    Upgrade(usize, bool),
    /// The files of all servers change.
    ChangeFiles,
    /// A shortage begins, or ends.
    Shortage(Option<Shortage>),
    /// This many turns, chosen by the salt; no time passes.
    Turns(u32, u64),
    /// Time passes, and a daemon gets no turn though it has something to do: the machine is busy.
    Starve(usize, Duration, u64),
    /// Time passes, and every process gets all the turns it needs.
    Pass(Duration, u64),
}

/// A kind of process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An app.
    App,
    /// A shim.
    Shim,
    /// A daemon.
    Daemon,
    /// A server.
    Server,
    /// The owner of the daemons.
    Owner,
}

/// A schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(crate) linger: Duration,
    pub(crate) owned: bool,
    /// Whether a daemon can watch its clients' processes.
    pub(crate) watchable: bool,
    pub(crate) in_turn: bool,
    pub(crate) shared: bool,
    pub(crate) hibernate: Option<Duration>,
    /// Capacity of a pipe or socket in bytes.
    pub(crate) room: usize,
    pub(crate) pipes: bool,
    /// What happens, in order.
    pub acts: Vec<Act>,
}

impl Schedule {
    /// Draws the schedule with this number.
    pub fn draw(seed: u64, number: u64) -> Schedule {
        let mut rng = Rng::of(
            seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            "schedule",
        );
        let linger = [0, 2, 60][rng.below(3) as usize];
        let owned = rng.below(4) == 0;
        let watchable = rng.below(5) != 0;
        let in_turn = rng.below(4) == 0;
        let shared = rng.below(5) != 0;
        let hibernate = match shared {
            true => [None, None, Some(3)][rng.below(3) as usize],
            false => [None, Some(1), Some(3)][rng.below(3) as usize],
        };
        // Less than a line, a few lines, or more than any process writes.
        let room = one_of(&mut rng, &[150, 1_000, 65_536, 65_536]);
        let pipes = rng.below(2) == 0;
        let length = 8 + rng.below(28);
        let mut acts = vec![Act::StartApp(era(&mut rng))];
        acts.extend((0..length).map(|_| act(&mut rng, watchable)));
        Schedule {
            linger: Duration::from_secs(linger),
            owned,
            watchable,
            in_turn,
            shared,
            hibernate: hibernate.map(Duration::from_secs),
            room,
            pipes,
            acts,
        }
    }
}

fn era(rng: &mut Rng) -> Era {
    match rng.below(3) {
        0 => Era::Modern,
        _ => Era::Legacy,
    }
}

fn act(rng: &mut Rng, watchable: bool) -> Act {
    let nth = rng.below(4) as usize;
    match rng.below(100) {
        0..8 => Act::StartApp(era(rng)),
        8..28 => {
            let tools = [
                Tool::Read,
                Tool::Pay,
                Tool::Pay,
                Tool::Long,
                Tool::Ask,
                Tool::List,
                Tool::Crash,
            ];
            let tool = one_of(rng, &tools);
            Act::Request(nth, tool, one_of(rng, &[0, 0, 20, 300, 3000]))
        }
        28..30 => Act::WriteMalformed(nth),
        30..33 => Act::Cancel(nth, rng.below(4) as usize),
        33..35 => Act::CloseApp(nth),
        35..46 => Act::Kill(role_of(rng), nth),
        46..52 => Act::Stop(role_of(rng), nth),
        52..56 => Act::Continue(role_of(rng), nth),
        56..57 => Act::HangDaemon(nth),
        57..58 => Act::StopDaemon(nth),
        58..60 | 64..67 => Act::Upgrade(nth, rng.below(8) != 0),
        60 => Act::Shortage(one_of(
            rng,
            &[
                None,
                Some(Shortage::Daemons),
                Some(Shortage::Servers),
                Some(Shortage::Sessions),
            ],
        )),
        61..63 => {
            let length = one_of(rng, &[100, 3_000, 11_500]);
            Act::Starve(nth, Duration::from_millis(length), rng.next_u64())
        }
        63 => Act::ChangeFiles,
        67..84 => Act::Turns(1 + rng.below(40) as u32, rng.next_u64()),
        _ => {
            let lengths = [1, 5, 30, 150, 600, 1_200, 2_500, 12_000, 61_000];
            // Clients that cannot be watched count as gone after half an hour without input.
            let length = match rng.below(12) {
                0 if !watchable => 1_860_000,
                _ => one_of(rng, &lengths),
            };
            Act::Pass(Duration::from_millis(length), rng.next_u64())
        }
    }
}

fn role_of(rng: &mut Rng) -> Role {
    let all = [
        Role::App,
        Role::Shim,
        Role::Daemon,
        Role::Daemon,
        Role::Daemon,
        Role::Server,
        Role::Server,
        Role::Owner,
    ];
    one_of(rng, &all)
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize]
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::StartApp(era) => write!(f, "a {era:?} app starts"),
            Act::Request(nth, tool, millis) => {
                write!(f, "app {nth} requests {tool:?}, {millis} ms")
            }
            Act::WriteMalformed(nth) => write!(f, "app {nth} writes a malformed line"),
            Act::Cancel(nth, which) => write!(f, "app {nth} cancels its {which}."),
            Act::CloseApp(nth) => write!(f, "app {nth} closes"),
            Act::Kill(role, nth) => write!(f, "{role:?} {nth} is killed"),
            Act::Stop(role, nth) => write!(f, "{role:?} {nth} is stopped"),
            Act::Continue(role, nth) => write!(f, "{role:?} {nth} is continued"),
            Act::HangDaemon(nth) => write!(f, "daemon {nth} hangs"),
            Act::StopDaemon(nth) => write!(f, "daemon {nth} is asked to stop"),
            Act::Upgrade(nth, true) => write!(f, "a newer build is available to daemon {nth}"),
            Act::Upgrade(nth, false) => {
                write!(
                    f,
                    "a newer build that does not start is available to daemon {nth}"
                )
            }
            Act::ChangeFiles => write!(f, "the files of all servers change"),
            Act::Shortage(None) => write!(f, "the shortage ends"),
            Act::Shortage(Some(what)) => write!(f, "shortage: {what:?}"),
            Act::Turns(turns, _) => write!(f, "{turns} turns"),
            Act::Starve(nth, length, _) => write!(f, "daemon {nth} gets no turn for {length:?}"),
            Act::Pass(length, _) => write!(f, "{length:?} pass"),
        }
    }
}
