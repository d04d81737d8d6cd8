//! A terminal of the test's own: what it shows is heard, and it can change its size.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use kennel_sys::Signal;
use kennel_sys::events::Bell;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Scope, tool, wait_for};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// `kennel` in the foreground of a terminal.
pub(crate) struct Pty {
    near: File,
    /// Held, so that the terminal outlives the program, and can be asked how it was left.
    far: OwnedFd,
    /// Rings when the reader of the terminal shall stop.
    stop_reading: Arc<Bell>,
    reader: Option<JoinHandle<()>>,
    child: Child,
    before: Termios,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Pty {
    /// `None` where nothing makes a terminal the controlling one.
    pub(crate) fn start(scope: &Scope, words: &[&str], columns: u16, rows: u16) -> Option<Pty> {
        Pty::start_with(scope, words, columns, rows, &[])
    }

    /// The program ignores SIGHUP, as behind `nohup`.
    pub(crate) fn start_ignoring_hangup(
        scope: &Scope,
        words: &[&str],
        columns: u16,
        rows: u16,
    ) -> Option<Pty> {
        let line = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
        Pty::start_behind(scope, &line, words, columns, rows, &[])
    }

    pub(crate) fn start_with(
        scope: &Scope,
        words: &[&str],
        columns: u16,
        rows: u16,
        variables: &[(&str, &str)],
    ) -> Option<Pty> {
        Pty::start_behind(scope, &[], words, columns, rows, variables)
    }

    fn start_behind(
        scope: &Scope,
        before_it: &[&str],
        words: &[&str],
        columns: u16,
        rows: u16,
        variables: &[(&str, &str)],
    ) -> Option<Pty> {
        let setsid = tool("setsid")?;
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        let path = ptsname(&near, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let far = open(path, flags, Mode::empty()).unwrap();
        resize(&far, columns, rows);
        let before = tcgetattr(&far).unwrap();
        let end = || Stdio::from(far.try_clone().unwrap());
        let mut command = scope.command(setsid);
        command
            .arg("--ctty")
            .args(before_it)
            .arg(env!("CARGO_BIN_EXE_kennel"))
            .args(words)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .envs(variables.iter().copied())
            .stdin(end())
            .stdout(end())
            .stderr(end());
        let child = command.spawn().unwrap();
        let near = File::from(near);
        let said = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (near.try_clone().unwrap(), Arc::clone(&said));
        let stop_reading = Arc::new(Bell::new().unwrap());
        let stop = Arc::clone(&stop_reading);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                let fds = &mut [
                    PollFd::new(&*stop, PollFlags::IN),
                    PollFd::new(&from, PollFlags::IN),
                ];
                let _ = poll(fds, None);
                if !fds[0].revents().is_empty() {
                    return;
                }
                match from.read(&mut bytes) {
                    Ok(count @ 1..) => into.lock().unwrap().extend(&bytes[..count]),
                    _ => return,
                }
            }
        });
        Some(Pty {
            near,
            far,
            stop_reading,
            reader: Some(reader),
            child,
            before,
            said,
        })
    }

    /// Everything it was told to show so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    /// What can be read on it now, row by row. As on a terminal, a picture that is begun is not seen before it is done.
    pub(crate) fn screen(&self) -> Vec<String> {
        let said = self.said();
        let done = match said.rfind("\x1b[?2026h") {
            Some(begun) if !said[begun..].contains("\x1b[?2026l") => begun,
            _ => said.len(),
        };
        Grid::of(&said[..done]).rows()
    }

    /// Waits until this can be read on it.
    #[track_caller]
    pub(crate) fn shows(&self, words: &str) {
        wait_for(&format!("the terminal shows {words:?}"), || {
            self.screen()
                .iter()
                .any(|row| row.contains(words))
                .then_some(())
        });
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.near.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        resize(&self.far, columns, rows);
    }

    /// Nobody reads it from now on: it is full soon, and takes nothing more.
    pub(crate) fn is_left_unread(&mut self) {
        self.stop_reading.ring();
        self.reader.take().unwrap().join().unwrap();
    }

    /// Writes to it until it takes nothing more.
    pub(crate) fn fill(&self) {
        let path = format!("/proc/self/fd/{}", self.far.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let own = open(path, flags, Mode::empty()).unwrap();
        while rustix::io::write(&own, &[b' '; 1024]).is_ok() {}
    }

    /// The terminal is closed under its program, as when its window or tmux is killed. The exit code.
    #[track_caller]
    pub(crate) fn closed(mut self) -> Option<i32> {
        self.is_left_unread();
        // The last descriptor of the near end: `/dev/null` takes its place.
        self.near = File::open("/dev/null").unwrap();
        let child = &mut self.child;
        wait_for("it ends with its terminal", || child.try_wait().unwrap()).code()
    }

    /// Its exit code, where nobody reads what it says last.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let child = &mut self.child;
        wait_for("it ends", || child.try_wait().unwrap()).code()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let process = ProcessRef::open(self.child.id()).unwrap();
        assert!(process.signal(signal).unwrap());
    }

    /// Its exit code, and all that it was told to show. The terminal must be as it was.
    #[track_caller]
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let child = &mut self.child;
        let status = wait_for("it ends", || child.try_wait().unwrap());
        let after = tcgetattr(self.far.as_fd()).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes);
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
        // What it said last is heard when something is heard that was said after it.
        rustix::io::write(&self.far, b"\x04that was all").unwrap();
        wait_for("its last words", || {
            self.said().ends_with("that was all").then_some(())
        });
        (status.code(), self.said())
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As much of a terminal as it takes to read what is on it.
#[derive(Default)]
struct Grid {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Grid {
    fn of(said: &str) -> Grid {
        let mut grid = Grid::default();
        let mut rest = said;
        while let Some(char) = rest.chars().next() {
            rest = &rest[char.len_utf8()..];
            match char {
                '\x1b' if rest.starts_with('[') => {
                    let Some(end) = rest[1..].find(|char: char| char.is_ascii_alphabetic()) else {
                        break;
                    };
                    grid.obey(&rest[1..=end], rest.as_bytes()[end + 1]);
                    rest = &rest[end + 2..];
                }
                '\r' => grid.column = 0,
                '\n' => grid.row += 1,
                char => grid.put(char),
            }
        }
        grid
    }

    fn obey(&mut self, words: &str, order: u8) {
        match (order, words) {
            (b'H', place) => {
                let (row, column) = place.split_once(';').unwrap_or(("1", "1"));
                self.row = row.parse::<usize>().unwrap() - 1;
                self.column = column.parse::<usize>().unwrap() - 1;
            }
            (b'J', "2") => self.cells.clear(),
            (b'J', _) => self.cells.truncate(self.row + 1),
            (b'K', _) => {
                if let Some(row) = self.cells.get_mut(self.row) {
                    row.truncate(self.column);
                }
            }
            _ => {}
        }
    }

    fn put(&mut self, char: char) {
        let rows = self.cells.len().max(self.row + 1);
        self.cells.resize(rows, Vec::new());
        let row = &mut self.cells[self.row];
        row.resize(row.len().max(self.column + 1), ' ');
        row[self.column] = char;
        self.column += 1;
    }

    fn rows(&self) -> Vec<String> {
        self.cells.iter().map(|row| row.iter().collect()).collect()
    }
}

fn resize(terminal: &OwnedFd, columns: u16, rows: u16) {
    let size = Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}
