//! The lock of a store: in the user's runtime directory, with a name that follows from the store's real path, so that all
//! spellings and environments share one lock (rule 8).

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use kennel_sys::lock::{self, Holder, Lock, LockError, Mode, Probe, Record, legacy};
use kennel_sys::runtime_dir::{Hold, RuntimeDir};
use kennel_sys::text::os_string;

use crate::refusal::Refusal;

/// The directory of all stores in the runtime directory.
const STORES: &str = "stores";
/// The lock file, in the directory of a store.
const LOCK: &str = "lock";
/// The file with the record of [`Held::declare`], beside the lock file.
const DECLARED: &str = "declared";
/// Maximum length of name and path together.
const MAX_DECLARED: usize = 64 << 10;
/// Maximum number of links in a path, as in the kernel.
const MAX_LINKS: usize = 40;
/// Maximum number of times that a store's directory may be removed (by an uninstall) during one attempt.
const ATTEMPTS: usize = 16;

/// A store: its real path, and the lock files of older releases.
#[derive(Debug)]
pub(crate) struct Store {
    real: PathBuf,
    key: String,
    legacy: Vec<PathBuf>,
}

/// Takes the store at `path` exclusively, without a [`Guard`](crate::Guard): for a program that watches over a server from
/// outside. `name` is shown to other processes.
pub fn hold_store(path: impl AsRef<Path>, name: &str) -> Result<Held, Refusal> {
    Store::at(path.as_ref(), &[])?.take(Mode::Exclusive, name)
}

/// The holders of the store at `path`. Creates nothing.
pub fn probe_store(path: impl AsRef<Path>) -> Result<Vec<HeldAt>, Refusal> {
    Store::at(path.as_ref(), &[])?.probe()
}

/// A store that is held. Dropping it releases the store.
#[derive(Debug)]
#[must_use = "dropping this releases the store"]
pub struct Held {
    real: PathBuf,
    own: RuntimeDir,
    _lock: Lock,
    _legacy: Vec<Lock>,
    _dir: Hold,
}

impl Held {
    /// The real path of the store.
    pub fn path(&self) -> &Path {
        &self.real
    }

    /// Writes beside the lock that the store is the state of the server `name`. A program that removes that server can read
    /// it with [`Declared::at`].
    pub fn declare(&self, name: &str) -> Result<(), Refusal> {
        let mut note = name.replace('\0', "").into_bytes();
        note.push(0);
        note.extend_from_slice(self.real.as_os_str().as_encoded_bytes());
        self.own.write_whole(DECLARED, &note)?;
        Ok(())
    }
}

/// A store that was declared as the state of a server. The declaration is reliable only while the lock is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The name of the server.
    pub name: String,
    /// The real path of the store.
    pub path: PathBuf,
}

impl Declared {
    /// The declaration of the store whose lock is in `own`. A declaration of another store is ignored.
    pub fn at(own: &RuntimeDir) -> Option<Declared> {
        let note = own.read_small(DECLARED, MAX_DECLARED).ok()??;
        let end = note.iter().position(|&byte| byte == 0)?;
        let path = PathBuf::from(os_string(&note[end + 1..]));
        let its_key = own.path().file_name()?.to_str()?;
        (store_key(&path) == its_key).then(|| Declared {
            name: String::from_utf8_lossy(&note[..end]).into_owned(),
            path,
        })
    }
}

impl Store {
    pub(crate) fn at(path: &Path, legacy: &[PathBuf]) -> Result<Store, Refusal> {
        let real = real_path(path).map_err(Refusal::io(format!(
            "find the real path of {}",
            path.display()
        )))?;
        Ok(Store {
            key: store_key(&real),
            real,
            legacy: legacy.to_vec(),
        })
    }

    /// Takes the store, exclusively or shared, or returns its holder at once.
    pub(crate) fn take(&self, mode: Mode, name: &str) -> Result<Held, Refusal> {
        let dir = RuntimeDir::of_user()?;
        let hold = dir.hold()?;
        let (own, lock) = self.lock(&dir, mode)?;
        let legacy = self.legacy_locks(|path| legacy::hold(path))?;
        if mode == Mode::Exclusive {
            // The record is written only after all locks were taken (rule 7).
            let record = Record::of_this_process(name)
                .map_err(Refusal::io("read the identity of this process"))?;
            lock.write_record(&record).map_err(Refusal::Lock)?;
        }
        Ok(Held {
            real: self.real.clone(),
            own,
            _lock: lock,
            _legacy: legacy,
            _dir: hold,
        })
    }

    /// Takes the store at all its locks, exclusively, for a destructive operation.
    pub(crate) fn seize(&self) -> Result<Seized, Refusal> {
        let dir = RuntimeDir::of_user()?;
        let (own, lock) = self.lock(&dir, Mode::Exclusive)?;
        let legacy = self.legacy_locks(|path| legacy::seize(path))?;
        Ok(Seized {
            stores: dir.subdir(STORES)?,
            key: self.key.clone(),
            own,
            lock,
            _legacy: legacy,
        })
    }

    fn lock(&self, dir: &RuntimeDir, mode: Mode) -> Result<(RuntimeDir, Lock), Refusal> {
        let mut attempts = ATTEMPTS;
        loop {
            attempts -= 1;
            let own = dir.subdir(STORES)?.subdir(&self.key)?;
            match Lock::acquire(&own, LOCK, mode) {
                Ok(lock) => return Ok((own, lock)),
                // An uninstall removed the directory after we had opened it.
                Err(LockError::Io { source, .. })
                    if attempts > 0 && source.kind() == io::ErrorKind::NotFound => {}
                Err(lock @ LockError::Held { .. }) => {
                    let store = self.real.clone();
                    return Err(Refusal::InUse { store, lock });
                }
                Err(other) => return Err(Refusal::Lock(other)),
            }
        }
    }

    fn legacy_locks(
        &self,
        take: impl Fn(&Path) -> Result<Option<Lock>, LockError>,
    ) -> Result<Vec<Lock>, Refusal> {
        let taken = self.legacy.iter().filter_map(|path| take(path).transpose());
        taken
            .collect::<Result<Vec<Lock>, LockError>>()
            .map_err(|lock| match lock {
                LockError::Held { .. } => Refusal::InUseByOlder {
                    store: self.real.clone(),
                    lock,
                },
                other => Refusal::Lock(other),
            })
    }

    /// The holders of the store, at any of its locks. Creates nothing.
    pub(crate) fn probe(&self) -> Result<Vec<HeldAt>, Refusal> {
        let mut held = Vec::new();
        if let Some(own) = self.existing_dir()? {
            let place = own.path().join(LOCK);
            held.extend(HeldAt::new(place, false, lock::probe(&own, LOCK)));
        }
        for path in &self.legacy {
            held.extend(HeldAt::new(path.clone(), true, legacy::probe(path)));
        }
        Ok(held)
    }

    /// The existing files of the store in the runtime directory. Creates nothing.
    pub(crate) fn runtime_files(&self) -> Result<Vec<PathBuf>, Refusal> {
        let Some(own) = self.existing_dir()? else {
            return Ok(Vec::new());
        };
        let is_ours = |name: &OsString| name == LOCK || name == DECLARED;
        let ours = own.entries()?.into_iter().filter(is_ours);
        Ok(ours.map(|name| own.path().join(name)).collect())
    }

    fn existing_dir(&self) -> Result<Option<RuntimeDir>, Refusal> {
        let Some(dir) = RuntimeDir::find_of_user()? else {
            return Ok(None);
        };
        let Some(stores) = dir.existing_subdir(STORES)? else {
            return Ok(None);
        };
        Ok(stores.existing_subdir(&self.key)?)
    }
}

/// A lock through which a process holds the store. Displayed, it completes "in use: ".
#[derive(Debug)]
pub struct HeldAt {
    /// The lock file.
    pub place: PathBuf,
    /// Whether it is the lock of an older release.
    pub legacy: bool,
    /// The holder, if known.
    pub holder: Option<Holder>,
    words: String,
}

impl HeldAt {
    fn new(place: PathBuf, legacy: bool, probe: Probe) -> Option<HeldAt> {
        let words = probe.holder_text(&place)?;
        let holder = match probe {
            Probe::Free => None,
            Probe::Held { by } => by,
        };
        Some(HeldAt {
            place,
            legacy,
            holder,
            words,
        })
    }
}

impl fmt::Display for HeldAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let older = if self.legacy {
            " (an older release's lock)"
        } else {
            ""
        };
        write!(
            f,
            "{}{older} is held by {}",
            self.place.display(),
            self.words
        )
    }
}

/// A store that is held exclusively at all its locks, for uninstall and similar operations.
#[derive(Debug)]
pub struct Seized {
    stores: RuntimeDir,
    key: String,
    own: RuntimeDir,
    lock: Lock,
    _legacy: Vec<Lock>,
}

impl Seized {
    /// Removes the store's lock while holding it, and its directory if it is then empty.
    pub fn remove_runtime(self) -> Result<(), Refusal> {
        self.own.unlink(DECLARED)?;
        self.lock.remove(&self.own).map_err(Refusal::Lock)?;
        self.stores.remove_subdir_if_empty(&self.key)?;
        Ok(())
    }
}

/// The real path of `path`, even if its last parts do not exist yet: it identifies a store.
pub fn real_path(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    resolve(std::path::absolute(path.as_ref())?, MAX_LINKS)
}

fn resolve(path: PathBuf, links_left: usize) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    // It does not exist yet, or is a link to a file that does not exist yet.
    if let Ok(target) = path.read_link() {
        let links_left = links_left
            .checked_sub(1)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        return resolve(parent.join(target), links_left);
    }
    let mut parts = path.components();
    let last = parts.next_back();
    let parent = resolve(parts.as_path().to_owned(), links_left)?;
    Ok(match last {
        Some(Component::Normal(name)) => parent.join(name),
        Some(Component::ParentDir) => parent.parent().unwrap_or(&parent).to_owned(),
        _ => parent,
    })
}

/// The name of the directory in `stores/` with the lock of the store at this real path: a hash of fixed length (FNV-1a, 128
/// bits). It need not be collision-resistant: a user who finds two paths with the same hash only locks themselves out.
pub fn store_key(real: &Path) -> String {
    let hash = real.as_os_str().as_encoded_bytes().iter().fold(
        0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128,
        |hash, &byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        },
    );
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_testkit::Scope;

    #[test]
    fn every_spelling_of_a_store_is_one_path_even_if_it_does_not_exist() {
        let scope = Scope::new("real-path");
        let real = scope.path("dir");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, scope.path("link")).unwrap();
        std::os::unix::fs::symlink("dir/new.db", scope.path("dangling")).unwrap();
        let expected = real.join("new.db");
        for spelling in [
            "dir/new.db",
            "link/new.db",
            "dangling",
            "dir/./new.db",
            "dir/../dir/new.db",
            "dir/later/../new.db",
            "link/../link/new.db",
        ] {
            let path = scope.path(spelling);
            assert_eq!(real_path(&path).unwrap(), expected, "{spelling}");
        }
        let deep = real_path(scope.path("link/a/b/c.db")).unwrap();
        assert_eq!(deep, real.join("a/b/c.db"));
        std::fs::write(&expected, "").unwrap();
        assert_eq!(real_path(scope.path("dangling")).unwrap(), expected);
    }

    #[test]
    fn a_loop_of_links_is_an_error_and_not_a_hang() {
        let scope = Scope::new("loop");
        std::os::unix::fs::symlink("b", scope.path("a")).unwrap();
        std::os::unix::fs::symlink("a", scope.path("b")).unwrap();
        assert!(real_path(scope.path("a")).is_err());
    }

    #[test]
    fn different_paths_have_different_keys_of_one_length() {
        let keys = ["/a", "/b", "/a/b", "/", "/ä"].map(|path| store_key(Path::new(path)));
        for (index, one) in keys.iter().enumerate() {
            assert_eq!(one.len(), 32);
            assert!(keys[index + 1..].iter().all(|other| other != one));
        }
    }
}
