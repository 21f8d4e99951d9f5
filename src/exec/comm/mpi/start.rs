//! Starting MPI, which waits until every rank does. MPI has no limit for that, and cannot say who is
//! missing; so each rank leaves a mark in the folder that `mpirun` has for the job on each host.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::{MpiError, library::Library};
use crate::exec::comm::{named, seconds};

/// MPI, started within `limit`. Where it is not, a thread stays behind that waits for it.
pub(super) fn start(limit: Duration) -> Result<Library, MpiError> {
    let job = Job::of_environment();
    if let Some(job) = &job {
        job.mark();
    }
    let (send, receive) = mpsc::channel();
    let starting = thread::Builder::new().name("starting MPI".into()).spawn(move || {
        // Nobody listens any more after the limit.
        let _ = send.send(Library::start());
    });
    if let Err(error) = starting {
        return Err(MpiError { message: format!("MPI cannot be started: {error}"), help: None });
    }
    match receive.recv_timeout(limit) {
        Ok(result) => result,
        Err(_) => Err(MpiError {
            message: late(&job.map(|job| job.missing()).unwrap_or_default(), limit),
            help: Some(
                "every process that `mpirun` starts has to be `tg run --engine mpi`; one that takes longer on \
                 purpose needs a longer time limit (`--comm-timeout`)"
                    .into(),
            ),
        }),
    }
}

fn late(missing: &[u32], limit: Duration) -> String {
    let limit = seconds(limit);
    match missing {
        [] => format!("MPI did not start within {limit}: a rank has not joined"),
        [rank] => format!("rank {rank} has not joined within {limit}"),
        several => format!("{} have not joined within {limit}", named(several)),
    }
}

/// What `mpirun` tells its processes.
struct Job {
    /// Belongs to one job on this host, and is removed with it.
    folder: PathBuf,
    name: String,
    rank: u32,
    world: u32,
    /// Whether all ranks are on this host.
    is_one_host: bool,
}

impl Job {
    fn of_environment() -> Option<Job> {
        let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
        let folders = ["PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_jobfam_session_dir"];
        let folder = folders.iter().filter_map(env::var_os).map(PathBuf::from).find(|path| path.is_dir())?;
        let world = number("OMPI_COMM_WORLD_SIZE")?;
        Some(Job {
            folder,
            // A job may start others.
            name: env::var("PMIX_NAMESPACE").unwrap_or_default().replace(['/', '\\'], "_"),
            rank: number("OMPI_COMM_WORLD_RANK")?,
            world,
            is_one_host: number("OMPI_COMM_WORLD_LOCAL_SIZE") == Some(world),
        })
    }

    fn path(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("tg-{}-{rank}", self.name))
    }

    /// Shows that this rank is here. Where that cannot be, its number is missing in messages.
    fn mark(&self) {
        let _ = fs::write(self.path(self.rank), []);
    }

    /// The ranks that have left no mark, where that can be known.
    fn missing(&self) -> Vec<u32> {
        let is_marked = |rank: u32| Path::exists(&self.path(rank));
        if !self.is_one_host || !is_marked(self.rank) {
            return Vec::new();
        }
        (0..self.world).filter(|&rank| !is_marked(rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_missing_is_named() {
        let two = Duration::from_secs(2);
        assert_eq!(late(&[], two), "MPI did not start within 2 s: a rank has not joined");
        assert_eq!(late(&[1], two), "rank 1 has not joined within 2 s");
        assert_eq!(late(&[0, 2, 3], two), "ranks 0, 2 and 3 have not joined within 2 s");
    }
}
