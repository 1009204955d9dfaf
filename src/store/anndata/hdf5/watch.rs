//! Gives up on a library that hangs.
//!
//! HDF5 loops forever on some damaged files, and there is no way to interrupt it. So the opening of a file runs on a thread of
//! its own, which is left behind if a call into the library gets nowhere for too long. It keeps the library's lock: nothing
//! more can be opened in this process, which is about to end with the error anyway. Time spent outside the library, or in
//! calls that get on (listing the chunks of a large file), is not limited.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::library::progress;

/// How often the watcher looks.
const GLANCE: Duration = Duration::from_millis(100);

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The library hangs.
    Hung,
    /// The work ended without one: it panicked, or no thread could be started.
    Failed,
}

/// Runs `work` on its own thread.
///
/// # Errors
/// [`Lost::Hung`] if a call into the library gets nowhere for longer than `patience`; [`Lost::Failed`] if `work` panics.
pub fn run<T: Send + 'static>(patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Lost> {
    let (give, take) = channel();
    let worker = thread::Builder::new().name("open".to_owned()).spawn(move || {
        let _ = give.send(work());
    });
    if worker.is_err() {
        return Err(Lost::Failed);
    }
    let mut last = (progress(), Instant::now());
    loop {
        match take.recv_timeout(GLANCE) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(Lost::Failed),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = progress();
        if now != last.0 || !now.0 {
            last = (now, Instant::now());
        } else if last.1.elapsed() > patience {
            return Err(Lost::Hung);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::library::locked;
    use super::*;

    #[test]
    fn only_a_call_that_gets_nowhere_is_given_up() {
        let patience = Duration::from_millis(300);
        let slow = || thread::sleep(Duration::from_millis(900));
        assert_eq!(run(patience, || 7), Ok(7));
        assert_eq!(run(patience, slow), Ok(()), "outside the library nothing hurries");
        assert_eq!(run(patience, move || locked(slow)), Err(Lost::Hung));
    }
}
