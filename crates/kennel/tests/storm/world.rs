//! Five apps, their notes, and what must be true in the end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kennel_testkit::{Client, DEADLINE, Rng, Scope, bin};
use serde_json::{Value, json};

use crate::app::{Added, App, Book, key_of};
use crate::kills;

const APPS: usize = 5;
/// Between two kills: from the middle of a restart to well after it.
const PAUSE: Duration = Duration::from_millis(400);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Solo,
}

pub(crate) struct World {
    scope: Scope,
    mode: Mode,
    apps: Vec<App>,
}

impl World {
    pub(crate) fn begin(label: &str, mode: Mode) -> World {
        let scope = Scope::new(&label.replace(' ', "-"));
        let apps = (0..APPS)
            .map(|number| App::begin(number, session(&scope, mode, number)))
            .collect();
        World { scope, mode, apps }
    }

    pub(crate) fn live_through(self, kills: u32, chance: &mut Rng) {
        let World { scope, mode, apps } = self;
        let stop = AtomicBool::new(false);
        let done: Vec<(Client, Book)> = std::thread::scope(|threads| {
            let working: Vec<_> = apps
                .into_iter()
                .map(|app| {
                    let mut chance = Rng::seeded(&format!("{}", chance.next_u64()));
                    let stop = &stop;
                    threads.spawn(move || app.work(stop, &mut chance))
                })
                .collect();
            for _ in 0..kills {
                pause(chance.duration_below(PAUSE));
                kills::somebody(&scope, mode, chance);
            }
            stop.store(true, Ordering::SeqCst);
            let joined = working.into_iter().map(|working| working.join());
            joined
                .map(|done| done.unwrap_or_else(|_| panic!("daemons said:\n{}", logs(&scope))))
                .collect()
        });
        let answers: u64 = done.iter().map(|(_, book)| book.answers).sum();
        assert!(answers > 0, "somebody was answered something");
        for (number, (mut client, book)) in done.into_iter().enumerate() {
            judge(number, &book, &notes(&mut client));
        }
        scope.nothing_left_within("after the last app", DEADLINE);
    }
}

fn logs(scope: &Scope) -> String {
    let keys = std::fs::read_dir(scope.runtime_dir().join("daemons"));
    let logs = keys.into_iter().flatten().flatten();
    logs.map(|key| std::fs::read_to_string(key.path().join("log")).unwrap_or_default())
        .collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a kill comes when it comes: nothing is waited for"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// What must be true of one app's notes.
fn judge(number: usize, book: &Book, kept: &BTreeMap<String, usize>) {
    for (text, added) in &book.added {
        let times = kept.get(text).copied().unwrap_or(0);
        match added {
            Added::Yes => assert_eq!(times, 1, "{text} was acknowledged"),
            Added::Unknown => assert!(times <= 1, "{text} is there {times} times"),
        }
    }
    let mine = format!(" of {number}.");
    for text in kept.keys().filter(|text| text.ends_with(&mine)) {
        assert!(book.added.contains_key(text), "nobody asked for {text}");
    }
    let version = kept
        .keys()
        .find_map(|text| text.strip_prefix(&format!("{}: ", key_of(number))));
    let version: u64 = version.map_or(0, |version| version.parse().expect("a version"));
    assert!(
        (book.put..=book.put_asked).contains(&version),
        "app {number}: version {version}, acknowledged {}, asked for {}",
        book.put,
        book.put_asked
    );
}

/// How often each text is kept; what is under a key has that before it.
fn notes(client: &mut Client) -> BTreeMap<String, usize> {
    let page = client.call("list_notes", json!({"limit": 1_000_000}));
    let page = &page["structuredContent"];
    let mut kept = BTreeMap::new();
    let notes = page["notes"]
        .as_array()
        .unwrap_or_else(|| panic!("no notes: {page}"));
    for note in notes {
        let text = note["text"].as_str().expect("a note has a text");
        let text = match &note["key"] {
            Value::String(key) => format!("{key}: {text}"),
            _ => text.to_owned(),
        };
        *kept.entry(text).or_default() += 1;
    }
    kept
}

fn session(scope: &Scope, mode: Mode, number: usize) -> Box<dyn Fn() -> Command + Send> {
    // Solo sessions have a store each: a store has one writer.
    let (share, store): (_, PathBuf) = match mode {
        Mode::Shared => ("always", scope.path("notes.db")),
        Mode::Solo => ("never", scope.path(format!("notes-{number}.db"))),
    };
    let place = format!("KENNEL_RUNTIME_DIR={}", scope.runtime_dir().display());
    let scope_command = command_of(scope);
    Box::new(move || {
        let mut command = scope_command();
        command
            .args(["run", "--share", share, "--linger", "1s"])
            // On a busy machine a daemon takes its time; who went solo would not get the store.
            .args(["--start-timeout", "60s"])
            .args(["--stop-after", "1s,1s", "--", "env"])
            // What is before the server knows nothing of the server's own.
            .arg(&place)
            .arg(bin("notes"))
            .args(["serve", "--db"])
            .arg(&store);
        command
    })
}

/// The scope's command, to be made on another thread.
fn command_of(scope: &Scope) -> impl Fn() -> Command + Send + 'static {
    let template = scope.command(env!("CARGO_BIN_EXE_kennel"));
    let environment: Vec<_> = template
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
        .collect();
    move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        for (name, value) in &environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}
