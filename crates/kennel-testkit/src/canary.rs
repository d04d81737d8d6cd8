//! A secret in the environment of everything that tests start, and the search for it: Kennel hands it on to servers,
//! and writes it down nowhere.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The variable that holds it: called like those that hold secrets, and no different to Kennel.
pub const CANARY: &str = "SECRET_CANARY_TOKEN";

/// Nothing of Kennel's is longer than this; what a test made itself may be.
const LONGEST: u64 = 64 << 20;

/// Where the canary was found while tests ran.
static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A value that is nowhere but where somebody put it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary(String);

impl Canary {
    /// One that nobody has seen yet.
    pub fn fresh() -> Canary {
        let random = || RandomState::new().hash_one(std::process::id());
        Canary(format!("{:016x}{:016x}", random(), random()))
    }

    /// The one of this run: of all tests under `cargo xtask test`, else of this test alone.
    pub fn of_run() -> &'static Canary {
        static OF_RUN: OnceLock<Canary> = OnceLock::new();
        OF_RUN.get_or_init(|| std::env::var(CANARY).map_or_else(|_| Canary::fresh(), Canary))
    }

    /// The value itself. Not for showing.
    pub fn value(&self) -> &str {
        &self.0
    }

    /// Whether it is in this.
    pub fn is_in(&self, content: &[u8]) -> bool {
        String::from_utf8_lossy(content).contains(&self.0)
    }

    /// What has it in its name, its content or, of a link, its target: below `path`, and `path` itself.
    pub fn below(&self, path: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        self.search(path, &mut found);
        found
    }

    fn search(&self, path: &Path, found: &mut Vec<PathBuf>) {
        // What is gone meanwhile, or closed to us, is not looked at: nothing of Kennel's is closed to its user.
        let Ok(meta) = path.symlink_metadata() else {
            return;
        };
        let name = path.file_name().unwrap_or_default();
        let content = if meta.is_symlink() {
            fs::read_link(path).map(|target| target.into_os_string().into_encoded_bytes())
        } else if meta.is_file() {
            text_of(path)
        } else {
            Ok(Vec::new())
        };
        if self.is_in(name.as_encoded_bytes()) || self.is_in(&content.unwrap_or_default()) {
            found.push(path.to_owned());
        }
        if meta.is_dir() {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                self.search(&entry.path(), found);
            }
        }
    }

    /// The processes that have it among their arguments, which every user can read.
    pub fn among_arguments(&self) -> Vec<String> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let has_it = |pid: &u32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            self.is_in(&arguments)
        };
        let told = |pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("the arguments of process {pid}, {}", name.trim())
        };
        pids.filter(has_it).map(told).collect()
    }

    /// Remembers, for [`seen`], who has it among their arguments now.
    pub(crate) fn look_at_arguments(&self) {
        for place in self.among_arguments() {
            remember(place);
        }
    }

    /// Remembers, for [`seen`], what has it there now: it may be gone before the test ends.
    pub(crate) fn look_below<'a>(&self, places: impl Iterator<Item = &'a PathBuf>) {
        for path in places.flat_map(|place| self.below(place)) {
            remember(path.display().to_string());
        }
    }

    /// Remembers, for [`seen`], that this line of `source` has it. A line of MCP may: it is between server and app.
    pub(crate) fn hear(&self, source: &str, line: &str) {
        if line.contains(&self.0) && !line.contains("\"jsonrpc\"") {
            remember(source.to_owned());
        }
    }
}

/// Where the canary was found while this test ran.
pub(crate) fn seen() -> Vec<String> {
    std::mem::take(&mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn remember(place: String) {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !seen.contains(&place) {
        seen.push(place);
    }
}

/// The content of a file that is no program: tests copy those by the dozen, and nobody writes into one.
fn text_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?.take(LONGEST);
    let mut content = Vec::new();
    (&mut file).take(4).read_to_end(&mut content)?;
    if content != b"\x7fELF" {
        file.read_to_end(&mut content)?;
    }
    Ok(content)
}
