//! The terminal while it is ours: another screen, no echo. It is given back when this is dropped, and before a panic
//! is told.

use std::io::{self, BufWriter, Stdout};
use std::sync::Once;

use crossterm::cursor::{Hide, Show};
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Position, Rect};

use super::model::Model;
use super::view;

/// Room for a whole picture, so that it is written in one piece.
const PICTURE: usize = 64 << 10;

pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
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
        enable_raw_mode()?;
        let out = BufWriter::with_capacity(PICTURE, io::stdout());
        let entered = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(out)));
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
        queue!(self.terminal.backend_mut(), BeginSynchronizedUpdate)?;
        if !self.known {
            let size = self.terminal.size()?;
            self.terminal.resize(Rect::from((Position::ORIGIN, size)))?;
            self.known = true;
        }
        self.terminal.draw(|frame| view::draw(frame, model))?;
        execute!(self.terminal.backend_mut(), EndSynchronizedUpdate)
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

/// A terminal that is gone needs nothing back.
fn give_back() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
