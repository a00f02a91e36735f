//! The descriptors that a daemon holds for the next worker of a graph.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use block::{Error, ErrorKind, Result};
use runtime::{NAME_MAX_BYTES, PASSED_FDS_MAX};
use rustix::fs::{FileType, fstat};
use rustix::net::Shutdown;

/// The descriptors that a daemon holds for the next worker of one graph. If the daemon has a service manager with a
/// descriptor store, that store holds each descriptor too, as `GRAPH/NAME`, so that the daemon may be killed too.
pub struct Held {
    graph: String,
    all: Vec<(String, OwnedFd)>,
}

impl Held {
    /// Creates the descriptors held for `graph`. `all` are those that the service manager has held since the previous
    /// daemon.
    pub fn new(graph: &str, all: Vec<(String, OwnedFd)>) -> Self {
        Self { graph: graph.to_owned(), all }
    }

    /// Holds a descriptor for the next worker, unless it is held already.
    ///
    /// # Errors
    /// `Limit` if too many descriptors are held, or if the name is too long; errors of the system. After an error of
    /// the service manager's socket this process holds the descriptor all the same.
    pub fn store(&mut self, name: &str, file: OwnedFd) -> Result<()> {
        let failed = |error: io::Error| Error::io(&error, format_args!("holding {name}"));
        let is_socket = is_socket(file.as_fd()).map_err(failed)?;
        let mut replaced = Ok(());
        if is_socket {
            for (_, held) in self.all.iter().filter(|(held, _)| held == name) {
                if id(held.as_fd()).map_err(failed)? == id(file.as_fd()).map_err(failed)? {
                    return Ok(());
                }
            }
        } else if self.all.iter().any(|(held, _)| held == name) {
            // Every mount is the same node of /dev, so its name identifies it. A service manager compares
            // more than the name, and would hold both.
            replaced = self.remove(name);
        }
        let limit = |words: String| Err(Error::new(ErrorKind::Limit, words));
        if self.all.len() >= PASSED_FDS_MAX {
            return limit(format!(
                "{name} is not held: {PASSED_FDS_MAX} descriptors of {} are the limit",
                self.graph
            ));
        }
        let far = self.far(name);
        if far.len() > NAME_MAX_BYTES || name.contains(['\n', ':']) {
            return limit(format!(
                "the daemon does not hold {name:?}: its name has at most {NAME_MAX_BYTES} bytes"
            ));
        }
        let told = runtime::fdstore_put(&far, file.as_fd());
        self.all.push((name.to_owned(), file));
        replaced.and(told.map(drop))
    }

    /// Closes all held descriptors called `name`.
    ///
    /// # Errors
    /// Errors of the service manager's socket. This process has closed the descriptors all the same.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.all.retain(|(held, _)| held != name);
        runtime::withdraw(&self.far(name))
    }

    /// Closes all held descriptors.
    ///
    /// # Errors
    /// The first error of the service manager's socket. This process has closed the descriptors all the same.
    pub fn clear(&mut self) -> Result<()> {
        self.clear_with(runtime::withdraw)
    }

    /// Closes all held descriptors, and removes each with `withdraw`. All removals are tried after an error, because
    /// keys may be among the descriptors.
    fn clear_with(&mut self, withdraw: impl Fn(&str) -> Result<()>) -> Result<()> {
        let all = std::mem::take(&mut self.all);
        // Removes all of them, and then returns the first error.
        let told: Vec<_> = all.iter().map(|(name, _)| withdraw(&self.far(name))).collect();
        told.into_iter().collect()
    }

    /// Closes the held listening sockets, and removes their files.
    ///
    /// # Errors
    /// The first error of the service manager's socket. This process has closed the sockets all the same.
    pub fn close_listeners(&mut self) -> Result<()> {
        let all = std::mem::take(&mut self.all).into_iter();
        let (listeners, others): (Vec<_>, _) = all.partition(|(_, file)| is_listener(file));
        self.all = others;
        let paths: Vec<_> = listeners.iter().filter_map(|(_, file)| path_of(file)).collect();
        let told = listeners.iter().map(|(name, _)| runtime::withdraw(&self.far(name)));
        let told: Vec<_> = told.collect();
        for (_, listener) in listeners {
            // A process that is just being started has a copy, and connections to it would succeed.
            let _ = rustix::net::shutdown(&listener, Shutdown::Both);
        }
        for path in paths {
            // A new listener may be at the path by now.
            let heard = UnixStream::connect(&path);
            if heard.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
                let _ = std::fs::remove_file(path);
            }
        }
        told.into_iter().collect()
    }

    /// Returns all held descriptors with their names, for the process that holds them next.
    pub fn into_all(self) -> Vec<(String, OwnedFd)> {
        self.all
    }

    /// Returns each held descriptor with its name.
    pub fn all(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        self.all.iter().map(|(name, file)| (name.as_str(), file.as_fd()))
    }

    /// Returns the number of held descriptors.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether no descriptor is held.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn far(&self, name: &str) -> String {
        format!("{}/{name}", self.graph)
    }
}

fn is_socket(file: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode) == FileType::Socket)
}

fn is_listener(file: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_acceptconn(file).unwrap_or(false)
}

/// Returns the path of a unix socket; `None` if it has no absolute path.
fn path_of(file: &OwnedFd) -> Option<PathBuf> {
    let address = UnixListener::from(file.try_clone().ok()?).local_addr().ok()?;
    address.as_pathname().filter(|path| path.is_absolute()).map(Path::to_owned)
}

fn id(file: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let found = fstat(file)?;
    Ok((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn descriptor_store_holds_one_copy_of_each_descriptor() {
        let mut held = Held::new("home", Vec::new());
        let sockets: Vec<OwnedFd> =
            (0..2).map(|_| UnixDatagram::unbound().unwrap().into()).collect();
        for _ in 0..3 {
            for socket in &sockets {
                held.store("listener", socket.try_clone().unwrap()).unwrap();
            }
        }
        assert_eq!(held.len(), 2);
        // Like every open of /dev/fuse, every open of /dev/null is the same node.
        let node = || std::fs::File::open("/dev/null").unwrap().into();
        for name in ["attached/a/vol/4096", "attached/b/vol/4096", "attached/a/vol/4096"] {
            held.store(name, node()).unwrap();
        }
        assert_eq!(held.len(), 4);
        held.remove("listener").unwrap();
        let names: Vec<_> = held.all().map(|(name, _)| name).collect();
        assert_eq!(names, ["attached/b/vol/4096", "attached/a/vol/4096"]);
    }

    #[test]
    fn close_listeners_removes_only_listeners_and_their_paths() {
        let path = std::env::temp_dir().join(format!("cairn-held-{}", std::process::id()));
        let mut held = Held::new("home", Vec::new());
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let connection = listener.accept().unwrap().0;
        // A process that is being started has a copy for a moment.
        let copy = listener.try_clone().unwrap();
        held.store("listener", listener.into()).unwrap();
        held.store("connection/0", connection.into()).unwrap();
        held.close_listeners().unwrap();
        assert!(!path.exists() && held.len() == 1);
        drop(copy);
        // A listener that accepts at the path of a closed one belongs to another process.
        let listener = UnixListener::bind(&path).unwrap();
        std::fs::rename(&path, path.with_extension("old")).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        held.store("listener", listener.into()).unwrap();
        held.close_listeners().unwrap();
        assert!(path.exists() && held.len() == 1);
        drop((other, client));
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(path.with_extension("old")).unwrap();
    }

    #[test]
    fn descriptor_store_clear_continues_after_failed_removal() {
        let mut held = Held::new("home", Vec::new());
        for name in ["one", "two", "three"] {
            held.store(name, std::fs::File::open("/dev/null").unwrap().into()).unwrap();
        }
        let asked = std::cell::RefCell::new(Vec::new());
        let cleared = held.clear_with(|name| {
            asked.borrow_mut().push(name.to_owned());
            match name {
                "home/three" => Ok(()),
                name => Err(Error::new(ErrorKind::Io, name.to_owned())),
            }
        });
        assert!(cleared.unwrap_err().to_string().contains("home/one"));
        assert_eq!(asked.into_inner(), ["home/one", "home/two", "home/three"]);
        assert!(held.is_empty());
    }

    #[test]
    fn store_refuses_descriptor_above_limit() {
        let mut held = Held::new("home", Vec::new());
        let node = || std::fs::File::open("/dev/null").unwrap().into();
        for n in 0..PASSED_FDS_MAX {
            held.store(&n.to_string(), node()).unwrap();
        }
        let error = held.store("more", node()).unwrap_err();
        assert!(error.kind() == ErrorKind::Limit && error.to_string().contains("512"), "{error}");
        held.remove("0").unwrap();
        held.store("more", node()).unwrap();
        held.remove("1").unwrap();
        let long = "x".repeat(NAME_MAX_BYTES);
        assert_eq!(held.store(&long, node()).unwrap_err().kind(), ErrorKind::Limit);
    }
}
