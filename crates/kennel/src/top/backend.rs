//! A backend for ratatui: the escape sequences that all usual terminals understand.

use std::io::{self, Write};

use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};

/// Draws by writing escape sequences.
pub(super) struct Ansi<W> {
    out: W,
}

impl<W: Write> Ansi<W> {
    pub(super) fn new(out: W) -> Ansi<W> {
        Ansi { out }
    }
}

/// The style of a cell, apart from its symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CellStyle {
    colour: Color,
    modifier: Modifier,
}

const DEFAULT_STYLE: CellStyle = CellStyle {
    colour: Color::Reset,
    modifier: Modifier::empty(),
};

impl CellStyle {
    fn write(self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"\x1b[0m")?;
        for (modifier, code) in [
            (Modifier::BOLD, 1),
            (Modifier::DIM, 2),
            (Modifier::REVERSED, 7),
        ] {
            if self.modifier.contains(modifier) {
                write!(out, "\x1b[{code}m")?;
            }
        }
        let code = match self.colour {
            Color::Green => 32,
            Color::Yellow => 33,
            Color::Blue => 34,
            Color::Cyan => 36,
            // Other colours are not used.
            _ => return Ok(()),
        };
        write!(out, "\x1b[{code}m")
    }
}

impl<W: Write> Write for Ansi<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Backend for Ansi<W> {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut style = DEFAULT_STYLE;
        let mut next = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                self.set_cursor_position((x, y))?;
            }
            next = Some((x + 1, y));
            let wanted = CellStyle {
                colour: cell.fg,
                modifier: cell.modifier,
            };
            if wanted != style {
                wanted.write(&mut self.out)?;
                style = wanted;
            }
            self.out.write_all(cell.symbol().as_bytes())?;
        }
        match style {
            DEFAULT_STYLE => Ok(()),
            _ => DEFAULT_STYLE.write(&mut self.out),
        }
    }

    /// `Screen` hides the cursor when it starts, and shows it when it ends.
    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Never fails: ratatui prints that error, and printing on a terminal that is gone panics.
    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Never used: the whole screen is drawn.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.out.write_all(match region {
            ClearType::All => b"\x1b[2J",
            ClearType::AfterCursor => b"\x1b[0J",
            ClearType::BeforeCursor => b"\x1b[1J",
            ClearType::CurrentLine => b"\x1b[2K",
            ClearType::UntilNewLine => b"\x1b[0K",
        })
    }

    fn size(&self) -> io::Result<Size> {
        let (columns, rows) = crate::terminal::window()?;
        // A window may have no size for a moment.
        Ok(Size::new(columns.max(1), rows.max(1)))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize {
            columns_rows: self.size()?,
            pixels: Size::default(),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
