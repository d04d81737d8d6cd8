//! Processes that hold the pipes of another process open, so that neither EOF nor a lost reader reports the death of its
//! app.

use std::io::{self, PipeReader, PipeWriter};
use std::process::{Child, Command, Stdio};

/// Two processes that hold the far ends of a session's stdin and stdout, and forward the data. The process that starts a
/// session must not hold them itself: an ancestor that does is the session's app (`kennel_sys::starter`). Dropping it ends
/// both.
#[derive(Debug)]
pub struct Keeper([Child; 2]);

/// The four pipe ends around a [`Keeper`].
#[derive(Debug)]
pub struct KeptPipes {
    /// For the session's stdin.
    pub input: PipeReader,
    /// For the session's stdout.
    pub output: PipeWriter,
    /// Data written here arrives at `input`.
    pub writer: PipeWriter,
    /// Data written to `output` arrives here.
    pub reader: PipeReader,
}

impl Keeper {
    /// Starts both. They belong to no [`Scope`](crate::Scope) and are not leftovers: they end by themselves when `writer`
    /// is closed and no process has `output` any more.
    pub fn start() -> io::Result<(Keeper, KeptPipes)> {
        let cat = |source: PipeReader, sink: PipeWriter| {
            Command::new("cat")
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap_or_default())
                .stdin(source)
                .stdout(sink)
                .stderr(Stdio::null())
                .spawn()
        };
        let (kept_input, writer) = io::pipe()?;
        let (input, to_session) = io::pipe()?;
        let (from_session, output) = io::pipe()?;
        let (reader, kept_output) = io::pipe()?;
        let to = cat(kept_input, to_session)?;
        let from = cat(from_session, kept_output)?;
        let pipes = KeptPipes {
            input,
            output,
            writer,
            reader,
        };
        Ok((Keeper([to, from]), pipes))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
