//! Schedules, drawn from a seed and a number alone: what a world is like, and what happens in it.

use std::fmt;
use std::time::Duration;

use kennel_testkit::Rng;

use crate::app::Era;
use crate::books::Tool;
use crate::kernel::Shortage;

/// What happens. Each act is for the `nth` of those who are there, so that it means something whatever was left out
/// before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// An app comes, with a shim.
    Come(Era),
    /// An app asks for something that takes so many milliseconds.
    Ask(usize, Tool, u64),
    /// An app wants one of its answers no more.
    Cancel(usize, usize),
    /// An app will say no more.
    Close(usize),
    /// Somebody is killed.
    Kill(Who, usize),
    /// Somebody is stopped.
    Stop(Who, usize),
    /// Somebody goes on.
    Thaw(Who, usize),
    /// A daemon lives on and does nothing any more.
    Hang(usize),
    /// A person stops a daemon.
    End(usize),
    /// A daemon is carried over to another program.
    Upgrade(usize),
    /// The files of all servers change.
    Change,
    /// From now on there is too little of something, or enough of everything.
    Lack(Option<Shortage>),
    /// So many turns, whose ones as the salt says; no time passes.
    Turns(u32, u64),
    /// Time passes, and a daemon gets no turn though it has something to do: the machine is busy.
    Starve(usize, Duration, u64),
    /// Time passes, and everybody has all the turns they need.
    Pass(Duration, u64),
}

/// Who is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// An app.
    App,
    /// A shim.
    Shim,
    /// A daemon.
    Daemon,
    /// A server.
    Server,
    /// The process outside that bounds the daemons' lives.
    Owner,
}

/// One schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(crate) linger: Duration,
    pub(crate) owned: bool,
    pub(crate) seen: bool,
    pub(crate) in_turn: bool,
    pub(crate) shared: bool,
    pub(crate) hibernate: Option<Duration>,
    /// What happens, in order.
    pub acts: Vec<Act>,
}

impl Schedule {
    /// The schedule of this number.
    pub fn draw(seed: u64, number: u64) -> Schedule {
        let mut dice = Rng::of(
            seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            "schedule",
        );
        let linger = [0, 2, 60][dice.below(3) as usize];
        let owned = dice.below(4) == 0;
        let seen = dice.below(5) != 0;
        let in_turn = dice.below(4) == 0;
        let shared = dice.below(5) != 0;
        // Often where it can be seen: a daemon's servers do not hibernate here.
        let hibernate = match shared {
            true => [None, None, Some(3)][dice.below(3) as usize],
            false => [None, Some(1), Some(3)][dice.below(3) as usize],
        };
        let length = 8 + dice.below(28);
        let mut acts = vec![Act::Come(era(&mut dice))];
        acts.extend((0..length).map(|_| act(&mut dice, seen)));
        Schedule {
            linger: Duration::from_secs(linger),
            owned,
            seen,
            in_turn,
            shared,
            hibernate: hibernate.map(Duration::from_secs),
            acts,
        }
    }
}

fn era(dice: &mut Rng) -> Era {
    match dice.below(3) {
        0 => Era::Modern,
        _ => Era::Legacy,
    }
}

fn act(dice: &mut Rng, seen: bool) -> Act {
    let nth = dice.below(4) as usize;
    match dice.below(100) {
        0..8 => Act::Come(era(dice)),
        8..28 => {
            let tools = [
                Tool::Read,
                Tool::Pay,
                Tool::Pay,
                Tool::Ask,
                Tool::List,
                Tool::Crash,
            ];
            let tool = one_of(dice, &tools);
            Act::Ask(nth, tool, one_of(dice, &[0, 0, 20, 300, 3000]))
        }
        28..33 => Act::Cancel(nth, dice.below(4) as usize),
        33..35 => Act::Close(nth),
        35..46 => Act::Kill(whom(dice), nth),
        46..52 => Act::Stop(whom(dice), nth),
        52..56 => Act::Thaw(whom(dice), nth),
        56..57 => Act::Hang(nth),
        57..58 => Act::End(nth),
        58..60 => Act::Upgrade(nth),
        60 => Act::Lack(one_of(
            dice,
            &[None, Some(Shortage::Daemons), Some(Shortage::Servers)],
        )),
        61..63 => {
            let length = one_of(dice, &[100, 3_000, 11_500]);
            Act::Starve(nth, Duration::from_millis(length), dice.next_u64())
        }
        63 => Act::Change,
        64..84 => Act::Turns(1 + dice.below(40) as u32, dice.next_u64()),
        _ => {
            let lengths = [1, 5, 30, 150, 600, 1_200, 2_500, 12_000, 61_000];
            // Who cannot be seen counts as gone after half an hour of silence.
            let length = match dice.below(12) {
                0 if !seen => 1_860_000,
                _ => one_of(dice, &lengths),
            };
            Act::Pass(Duration::from_millis(length), dice.next_u64())
        }
    }
}

fn whom(dice: &mut Rng) -> Who {
    let all = [
        Who::App,
        Who::Shim,
        Who::Daemon,
        Who::Daemon,
        Who::Daemon,
        Who::Server,
        Who::Server,
        Who::Owner,
    ];
    one_of(dice, &all)
}

fn one_of<T: Copy>(dice: &mut Rng, all: &[T]) -> T {
    all[dice.below(all.len() as u64) as usize]
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Come(era) => write!(f, "a {era:?} app comes"),
            Act::Ask(nth, tool, millis) => write!(f, "app {nth} asks: {tool:?}, {millis} ms"),
            Act::Cancel(nth, which) => write!(f, "app {nth} cancels its {which}."),
            Act::Close(nth) => write!(f, "app {nth} closes"),
            Act::Kill(who, nth) => write!(f, "{who:?} {nth} is killed"),
            Act::Stop(who, nth) => write!(f, "{who:?} {nth} is stopped"),
            Act::Thaw(who, nth) => write!(f, "{who:?} {nth} goes on"),
            Act::Hang(nth) => write!(f, "daemon {nth} hangs"),
            Act::End(nth) => write!(f, "daemon {nth} is asked to stop"),
            Act::Upgrade(nth) => write!(f, "daemon {nth} is upgraded"),
            Act::Change => write!(f, "the files of all servers change"),
            Act::Lack(None) => write!(f, "there is enough of everything"),
            Act::Lack(Some(what)) => write!(f, "there are too few {what:?}"),
            Act::Turns(turns, _) => write!(f, "{turns} turns"),
            Act::Starve(nth, length, _) => write!(f, "daemon {nth} gets no turn for {length:?}"),
            Act::Pass(length, _) => write!(f, "{length:?} pass"),
        }
    }
}
