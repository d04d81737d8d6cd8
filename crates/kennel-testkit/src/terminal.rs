//! A terminal that a test owns: it shows what a program writes, and can be typed at, resized, left unread and closed.

use std::ffi::OsStr;
use std::io::{Read as _, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{Termios, tcgetattr};

use crate::wait_for;

/// Maximum size that is emulated: a terminal may claim to have 65,535 rows and columns.
const MAX_ROWS: u16 = 700;
const MAX_COLUMNS: u16 = 1200;
/// Rows and columns beyond the edges in [`Terminal::screen_with_margin`].
const MARGIN: u16 = 100;
/// Where a program begins and ends a picture that is to be seen as a whole (synchronized output).
const PICTURE_BEGINS: &[u8] = b"\x1b[?2026h";
const PICTURE_ENDS: &[u8] = b"\x1b[?2026l";

/// A pseudoterminal with a program in its foreground.
pub struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    /// `None` once the terminal was closed.
    master: Option<Box<dyn MasterPty + Send>>,
    /// Taken when something is typed: it types an end of input when it is dropped.
    writer: Option<Box<dyn Write + Send>>,
    /// The program's end. Held, so that the terminal outlives the program, and can be asked how it was left.
    slave: OwnedFd,
    path: PathBuf,
    before: Termios,
    output: Arc<Mutex<Output>>,
    /// Whether the reader ends at the next byte.
    stops_reading: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts `command`, a command of a [`Scope`](crate::Scope), in the foreground of a new terminal.
    #[track_caller]
    pub fn start(command: &Command, columns: u16, rows: u16) -> Terminal {
        let pair = native_pty_system().openpty(size(columns, rows));
        let pair = pair.expect("a pseudoterminal");
        let path = pair.master.tty_name().expect("a terminal has a path");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = open(&path, flags, Mode::empty()).expect("the terminal opens");
        let before = tcgetattr(&slave).expect("it is a terminal");
        let child = pair.slave.spawn_command(builder(command));
        let child = child.expect("the program starts");
        let output = Arc::new(Mutex::new(Output::new(columns, rows)));
        let stops_reading = Arc::new(AtomicBool::new(false));
        let mut from = pair.master.try_clone_reader().expect("it can be read");
        let (into, stops) = (Arc::clone(&output), Arc::clone(&stops_reading));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if stops.load(Ordering::Relaxed) {
                    return;
                }
                into.lock().expect("no panic").append(&bytes[..count]);
            }
        });
        Terminal {
            child,
            master: Some(pair.master),
            writer: None,
            slave,
            path,
            before,
            output,
            stops_reading,
            reader: Some(reader),
        }
    }

    /// Everything that was written to it so far.
    pub fn written(&self) -> String {
        let output = self.output.lock().expect("no panic");
        String::from_utf8_lossy(&output.bytes).into_owned()
    }

    /// What can be read on it now, row by row, without blank rows at the end.
    pub fn screen(&self) -> Vec<String> {
        self.emulated(rows_of)
    }

    /// The same on a terminal that is larger than its size: what a program writes beyond an edge can be read there.
    pub fn screen_with_margin(&self) -> Vec<String> {
        let output = self.output.lock().expect("no panic");
        let (rows, columns) = output.parser.screen().size();
        let larger = |size: std::num::NonZeroU16| size.saturating_add(MARGIN);
        let mut parser = vt100::Parser::new(larger(rows), larger(columns), 0);
        parser.process(&output.bytes[..output.emulated]);
        rows_of(parser.screen())
    }

    /// Whether its cursor is seen, and whether its alternate screen is.
    pub fn cursor_and_alternate_screen(&self) -> (bool, bool) {
        self.emulated(|screen| (!screen.hide_cursor(), screen.alternate_screen()))
    }

    fn emulated<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        look(self.output.lock().expect("no panic").parser.screen())
    }

    /// Waits until this can be read on it.
    #[track_caller]
    pub fn shows(&self, words: &str) {
        wait_for(&format!("the terminal shows {words:?}"), || {
            let screen = self.screen();
            screen.iter().any(|row| row.contains(words)).then_some(())
        });
    }

    /// Types these keys.
    #[track_caller]
    pub fn types(&mut self, keys: &str) {
        let master = self.master.as_ref().expect("it is open");
        let writer = self
            .writer
            .get_or_insert_with(|| master.take_writer().expect("it is taken once"));
        writer.write_all(keys.as_bytes()).expect("it is open");
    }

    /// Changes its size, as a window does.
    #[track_caller]
    pub fn resize(&self, columns: u16, rows: u16) {
        let mut output = self.output.lock().expect("no panic");
        let (emulated_rows, emulated_columns) = emulated_size(columns, rows);
        let screen = output.parser.screen_mut();
        screen.set_size(emulated_rows, emulated_columns);
        let master = self.master.as_ref().expect("it is open");
        master.resize(size(columns, rows)).expect("it is open");
    }

    /// Stops reading it: it is full soon, and takes nothing more.
    pub fn stop_reading(&mut self) {
        let Some(reader) = self.reader.take() else {
            return;
        };
        self.stops_reading.store(true, Ordering::Relaxed);
        // The reader waits for a byte.
        let _ = rustix::io::write(&self.slave, b" ");
        let _ = reader.join();
    }

    /// Writes to it until it takes nothing more.
    pub fn fill(&self) {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = open(&self.path, flags, Mode::empty()).expect("the terminal opens");
        while rustix::io::write(&slave, &[b' '; 1024]).is_ok() {}
    }

    /// Closes the terminal under its program, as when its window is closed. The exit code.
    #[track_caller]
    pub fn close(mut self) -> Option<i32> {
        self.stop_reading();
        self.writer = None;
        self.master = None;
        self.exit_code()
    }

    /// Waits until the program ends; what it writes last may be unread. Its exit code, or `None` if a signal ended it.
    #[track_caller]
    pub fn exit_code(&mut self) -> Option<i32> {
        let status = wait_for("the program to end", || {
            self.child.try_wait().expect("it is our child")
        });
        let code = i32::try_from(status.exit_code()).ok();
        code.filter(|_| status.signal().is_none())
    }

    /// Sends a signal to the program.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let process = ProcessRef::open(self.pid()).expect("the program runs");
        assert!(process.signal(signal).expect("a signal to our child"));
    }

    /// The pid of the program.
    pub fn pid(&self) -> u32 {
        self.child.process_id().expect("it was started")
    }

    /// Waits until the program ends. Its exit code, and all that it wrote. The terminal must be as it was.
    #[track_caller]
    pub fn finish(mut self) -> (Option<i32>, String) {
        let code = self.exit_code();
        let after = tcgetattr(&self.slave).expect("it is a terminal");
        assert_eq!(after.local_modes, self.before.local_modes);
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
        // What it wrote last was read when something was read that was written after it.
        rustix::io::write(&self.slave, b"\x04that was all").expect("it is open");
        wait_for("the last output", || {
            self.written().ends_with("that was all").then_some(())
        });
        (code, self.written())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stop_reading();
    }
}

/// What was written to a terminal, and the screen that this makes.
struct Output {
    bytes: Vec<u8>,
    /// How many of the bytes the screen shows. As on a terminal, a picture that is begun is not seen before it is done.
    emulated: usize,
    parser: vt100::Parser,
}

impl Output {
    fn new(columns: u16, rows: u16) -> Output {
        let (rows, columns) = emulated_size(columns, rows);
        Output {
            bytes: Vec::new(),
            emulated: 0,
            parser: vt100::Parser::new(rows, columns, 0),
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let new = &self.bytes[self.emulated..];
        let done = match last(new, PICTURE_BEGINS) {
            Some(begun) if last(&new[begun..], PICTURE_ENDS).is_none() => begun,
            _ => new.len(),
        };
        self.parser.process(&new[..done]);
        self.emulated += done;
    }
}

fn last(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .rposition(|window| window == wanted)
}

fn rows_of(screen: &vt100::Screen) -> Vec<String> {
    let (_, columns) = screen.size();
    let mut rows: Vec<String> = screen.rows(0, columns.get()).collect();
    while rows.pop_if(|row| row.trim_end().is_empty()).is_some() {}
    rows
}

fn size(columns: u16, rows: u16) -> PtySize {
    PtySize {
        rows,
        cols: columns,
        pixel_width: 0,
        pixel_height: 0,
    }
}

fn emulated_size(columns: u16, rows: u16) -> (std::num::NonZeroU16, std::num::NonZeroU16) {
    let within = |size: u16, max: u16| {
        std::num::NonZeroU16::new(size.min(max)).expect("a terminal has rows and columns")
    };
    (within(rows, MAX_ROWS), within(columns, MAX_COLUMNS))
}

fn builder(command: &Command) -> CommandBuilder {
    let mut argv = vec![command.get_program().to_owned()];
    argv.extend(command.get_args().map(OsStr::to_owned));
    let mut builder = CommandBuilder::from_argv(argv);
    builder.env_clear();
    for (name, value) in std::env::vars_os() {
        builder.env(name, value);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => builder.env(name, value),
            None => builder.env_remove(name),
        }
    }
    match command.get_current_dir() {
        Some(dir) => builder.cwd(dir),
        None => builder.cwd(std::env::current_dir().expect("this process has a directory")),
    }
    builder
}
