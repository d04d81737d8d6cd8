//! The terminal while it is ours: another screen, no echo. It is given back when this is dropped, and before a panic
//! is told.

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

/// Room for a whole picture, so that it is written in one piece.
const PICTURE: usize = 64 << 10;
/// Another screen, without a cursor; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?1049l\x1b[?25h";
/// What is between is shown at once.
const BEGIN_PICTURE: &[u8] = b"\x1b[?2026h";
const END_PICTURE: &[u8] = b"\x1b[?2026l";

/// How the terminal was before we came.
static BEFORE: Mutex<Option<Settings>> = Mutex::new(None);

pub(super) struct Screen {
    terminal: Terminal<Ansi<BufWriter<TerminalWriter>>>,
    /// Whether what is on it is known.
    known: bool,
}

impl Screen {
    pub(super) fn enter() -> io::Result<Screen> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let told = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                told(panic);
            }));
        });
        let mut out = BufWriter::with_capacity(PICTURE, TerminalWriter::stdout()?);
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
                give_back();
                Err(error)
            }
        }
    }

    /// Draws what changed, in the size that the terminal has now. Nobody sees half of it.
    pub(super) fn draw(&mut self, model: &Model) -> io::Result<()> {
        self.terminal.backend_mut().write_all(BEGIN_PICTURE)?;
        if !self.known {
            let size = self.terminal.size()?;
            self.terminal.resize(Rect::from((Position::ORIGIN, size)))?;
            self.known = true;
        }
        self.terminal.draw(|frame| view::draw(frame, model))?;
        let out = self.terminal.backend_mut();
        out.write_all(END_PICTURE)?;
        out.flush()
    }

    /// Gives the terminal back and stops this process, as SIGTSTP asks. Takes the terminal again once it is continued.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        ProcessRef::me()?.signal(Signal::STOP)?;
        make_raw()?;
        self.forget();
        let out = self.terminal.backend_mut();
        out.write_all(ENTER)?;
        out.flush()
    }

    /// Its window changed: one that was small for a moment has lost what did not fit, and may have its old size by now.
    pub(super) fn forget(&mut self) {
        self.known = false;
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Keys come one by one, unseen, and none is a signal.
fn make_raw() -> io::Result<()> {
    let before = Settings::make_raw()?;
    *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
    Ok(())
}

/// A terminal that is gone needs nothing back.
fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(before) = before else {
        return;
    };
    let _ = TerminalWriter::stdout().and_then(|mut terminal| terminal.write_all(LEAVE));
    let _ = before.restore();
}
