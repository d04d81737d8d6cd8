//! The terminal while `top` uses it: alternate screen, no echo. Restored when this is dropped, and before a panic is
//! reported.

use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, Once, PoisonError};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_sys::terminal::Settings;
use ratatui::Terminal;
use ratatui::layout::{Position, Rect};

use super::backend::Ansi;
use super::model::Model;
use super::view;
use crate::terminal::TerminalWriter;

/// Buffer size for a whole picture, so that it is written at once.
const FRAME_BUFFER_SIZE: usize = 64 << 10;
/// Switches to the alternate screen without a cursor, and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE_SCREEN: &[u8] = b"\x1b[?1049l\x1b[?25h";
/// Makes the terminal show the output between these two at once.
const BEGIN_FRAME: &[u8] = b"\x1b[?2026h";
const END_FRAME: &[u8] = b"\x1b[?2026l";

/// The settings of the terminal before `top` started.
static ORIGINAL_SETTINGS: Mutex<Option<Settings>> = Mutex::new(None);

pub(super) struct Screen {
    terminal: Terminal<Ansi<BufWriter<TerminalWriter>>>,
    /// Whether the content of the terminal is known.
    known: bool,
}

impl Screen {
    pub(super) fn enter() -> io::Result<Screen> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let log_lines = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                log_lines(panic);
            }));
        });
        let mut out = BufWriter::with_capacity(FRAME_BUFFER_SIZE, TerminalWriter::stdout()?);
        make_raw()?;
        let entered = out
            .write_all(ENTER)
            .and_then(|()| out.flush())
            .and_then(|()| Terminal::new(Ansi::new(out)));
        match entered {
            Ok(terminal) => Ok(Screen {
                terminal,
                known: true,
            }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// Draws the changes, in the present size of the terminal. The terminal never shows half of them.
    pub(super) fn draw(&mut self, model: &Model) -> io::Result<()> {
        self.terminal.backend_mut().write_all(BEGIN_FRAME)?;
        if !self.known {
            let size = self.terminal.size()?;
            self.terminal.resize(Rect::from((Position::ORIGIN, size)))?;
            self.known = true;
        }
        self.terminal.draw(|frame| view::draw(frame, model))?;
        let out = self.terminal.backend_mut();
        out.write_all(END_FRAME)?;
        out.flush()
    }

    /// Restores the terminal and stops this process, as SIGTSTP asks. Takes the terminal again once it is continued.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        restore();
        ProcessRef::me()?.signal(Signal::STOP)?;
        make_raw()?;
        self.forget();
        let out = self.terminal.backend_mut();
        out.write_all(ENTER)?;
        out.flush()
    }

    /// Forgets what is on the screen after a resize: a window that was small for a moment has lost its content, even if
    /// it has its old size again.
    pub(super) fn forget(&mut self) {
        self.known = false;
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Keys arrive one by one, without echo, and none sends a signal.
fn make_raw() -> io::Result<()> {
    let before = Settings::make_raw()?;
    *ORIGINAL_SETTINGS
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(before);
    Ok(())
}

/// Restores the terminal; there is nothing to do if it is gone.
fn restore() {
    let before = ORIGINAL_SETTINGS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Some(before) = before else {
        return;
    };
    let _ = TerminalWriter::stdout().and_then(|mut terminal| terminal.write_all(LEAVE_SCREEN));
    let _ = before.restore();
}
