//! The descriptors that are held for the next worker of a graph.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use block::{Error, ErrorKind, Result};
use runtime::{BEQUEST_MAX, NAME_MAX_BYTES};
use rustix::fs::{FileType, fstat};

/// What is held for one graph. If this process has a service manager that could, it is held there as well,
/// as `GRAPH/NAME`, so that this process may be killed too.
pub struct Held {
    graph: String,
    all: Vec<(String, OwnedFd)>,
}

impl Held {
    /// What a service manager has held since the daemon before this one.
    pub fn new(graph: &str, all: Vec<(String, OwnedFd)>) -> Self {
        Self { graph: graph.to_owned(), all }
    }

    /// Holds a descriptor; one that is held already is not held twice.
    ///
    /// # Errors
    /// `Limit` if there are too many, or its name is too long; what the system says of it. If it is told
    /// by the service manager's socket, it is held here all the same.
    pub fn store(&mut self, name: &str, file: OwnedFd) -> Result<()> {
        let failed = |error: io::Error| Error::io(&error, format_args!("holding {name}"));
        let is_socket = is_socket(file.as_fd()).map_err(failed)?;
        if is_socket {
            for (_, held) in self.all.iter().filter(|(held, _)| held == name) {
                if id(held.as_fd()).map_err(failed)? == id(file.as_fd()).map_err(failed)? {
                    return Ok(());
                }
            }
        } else {
            // Every mount is the same node of /dev: it is told by its name.
            self.all.retain(|(held, _)| held != name);
        }
        let limit = |words: String| Err(Error::new(ErrorKind::Limit, words));
        if self.all.len() >= BEQUEST_MAX {
            return limit(format!(
                "{name} is not held: {BEQUEST_MAX} descriptors of {} are already",
                self.graph
            ));
        }
        let far = self.far(name);
        if far.len() > NAME_MAX_BYTES || name.contains(['\n', ':']) {
            return limit(format!(
                "{name:?} is not held: no name of at most {NAME_MAX_BYTES} bytes"
            ));
        }
        let told = runtime::entrust(&far, file.as_fd());
        self.all.push((name.to_owned(), file));
        told.map(drop)
    }

    /// Closes all of that name.
    ///
    /// # Errors
    /// What the service manager's socket says; here they are closed.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.all.retain(|(held, _)| held != name);
        runtime::withdraw(&self.far(name))
    }

    /// Closes all.
    ///
    /// # Errors
    /// What the service manager's socket says; here they are closed.
    pub fn clear(&mut self) -> Result<()> {
        let all = std::mem::take(&mut self.all);
        all.iter().try_for_each(|(name, _)| runtime::withdraw(&self.far(name)))
    }

    /// Each with its name.
    pub fn all(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        self.all.iter().map(|(name, file)| (name.as_str(), file.as_fd()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
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

fn id(file: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let found = fstat(file)?;
    Ok((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn one_copy_of_each_is_held() {
        let mut held = Held::new("home", Vec::new());
        let sockets: Vec<OwnedFd> =
            (0..2).map(|_| UnixDatagram::unbound().unwrap().into()).collect();
        for _ in 0..3 {
            for socket in &sockets {
                held.store("listener", socket.try_clone().unwrap()).unwrap();
            }
        }
        assert_eq!(held.len(), 2);
        // As every open of /dev/fuse, every open of /dev/null is the same node.
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
    fn there_is_a_limit() {
        let mut held = Held::new("home", Vec::new());
        let node = || std::fs::File::open("/dev/null").unwrap().into();
        for n in 0..BEQUEST_MAX {
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
