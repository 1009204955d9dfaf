//! A few threads for what loop threads must not do: they never compute, copy or wait for long.

use std::io;

use crossbeam_channel::{SendError, Sender, unbounded};

use super::adapter::guarded;

/// Work for a pool.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads; they end when the pool is dropped and the queue is empty.
pub(super) struct Pool(Sender<Job>);

impl Pool {
    /// Starts `n_threads` of this name.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn start(name: &str, n_threads: usize) -> io::Result<Self> {
        let (sender, jobs) = unbounded::<Job>();
        for _ in 0..n_threads.max(1) {
            let jobs = jobs.clone();
            std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                for job in jobs {
                    // A job that panics drops its reply, which answers with EIO.
                    let _ = guarded("helper", || {
                        job();
                        Ok(())
                    });
                }
            })?;
        }
        Ok(Self(sender))
    }

    /// Runs a job on one of the threads, or here if they are gone.
    pub fn run(&self, job: Job) {
        if let Err(SendError(job)) = self.0.send(job) {
            job();
        }
    }
}
