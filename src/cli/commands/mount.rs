//! `shufflefs mount`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::{Frame, absolute, options_of, same_place, tree_of};
use crate::cli::args::MountArgs;
use crate::cli::dataset::Dataset;
use crate::cli::describe::{Plan, summary};
use crate::cli::options::UsageError;
use crate::cli::sources::{Sources, is_zarr};
use crate::cli::{molecules, readme, text};
use crate::mount::{self, Built, IoMode, Log, LogConfig, MountConfig};

/// When a mount that only waits for the pages of its first windows answers. A virtual machine that never used them
/// needs seconds for a gigabyte, and readers would wait for that instead; elsewhere it is over in a fraction of this.
const ANSWERS_WITHIN: Duration = Duration::from_millis(1500);

/// How long those pages may take at least, however long opening the dataset took.
const MIN_POPULATE_TIME: Duration = Duration::from_millis(500);

/// Mounts a dataset and returns when the mount answers, or, in the foreground, when it has ended.
pub fn run(args: MountArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    let (dataset_args, options) = options_of(args.dataset.clone())?;
    let (sources, mount_point) = split_paths(&args.paths, &dataset_args.sources)?;
    let io = args.io.parse::<IoMode>().map_err(|reason| UsageError { option: "--io".into(), reason })?;
    let verbosity = if args.quiet { -1 } else { i8::try_from(args.verbose).unwrap_or(i8::MAX) };
    let file = args.log_file.as_deref().map(std::path::absolute).transpose()?;
    let log = Log::start(&LogConfig { file, verbosity }).context("--log-file")?;
    let config = MountConfig {
        mount_point: mount_point.clone(),
        foreground: args.foreground,
        allow_other: args.allow_other,
        io,
        grace: Duration::from_secs(args.grace),
        n_loop_threads: mount::DEFAULT_LOOP_THREADS,
        log: Some(log.clone()),
    };
    let uid = args.uid.unwrap_or_else(|| nix::unistd::getuid().as_raw());
    let gid = args.gid.unwrap_or_else(|| nix::unistd::getgid().as_raw());
    let timeout = Duration::from_secs(args.timeout.max(1));
    let build = move || {
        let log_text = move || log.text();
        let frame =
            Frame { mount_point: mount_point.display().to_string(), uid, gid, log: std::sync::Arc::new(log_text) };
        let build = || -> anyhow::Result<_> {
            let mut dataset = Dataset::open(&sources, options)?;
            if io == IoMode::Passthrough {
                dataset.resources.share_with_files();
            }
            let left = ANSWERS_WITHIN.saturating_sub(began.elapsed());
            let engine = dataset.engine(timeout, left.max(MIN_POPULATE_TIME))?;
            let tree = tree_of(&dataset, &dataset_args, frame, engine)?;
            let backing_bytes = dataset.resources.backing_bytes;
            let summary = Box::new(move |io: &str| mount_summary(&dataset, &mount_point, io));
            Ok(Built { tree, summary, backing_bytes })
        };
        build().map_err(|error| text::chain(&error))
    };
    let quiet = args.quiet;
    mount::run(&config, build, |summary| {
        if !quiet {
            // Nobody has to read it.
            let _ = writeln!(std::io::stdout(), "{summary}");
        }
    })?;
    Ok(())
}

/// What is printed when the mount is there.
fn mount_summary(dataset: &Dataset, mount_point: &Path, io: &str) -> String {
    let folder = format!("{}/epoch-00000", mount_point.display());
    format!(
        "{} mounted on {}\n{}\nserved       {io}\n\n{}\nUnmount with: shufflefs umount {}",
        Sources::summary(&dataset.sources),
        mount_point.display(),
        summary(dataset, &Plan::new(dataset)),
        match &dataset.molecules {
            Some(_) => molecules::readme::snippet(dataset.options.format, &folder),
            None => readme::snippet(&folder),
        },
        mount_point.display()
    )
}

/// The sources and the mount point, which comes last; sources may be in the `--config` file.
fn split_paths(paths: &[PathBuf], configured: &[PathBuf]) -> anyhow::Result<(Sources, PathBuf)> {
    let paths = absolute(paths)?;
    let Some((mount_point, sources)) = paths.split_last() else { return Err(usage("no mount point given".into())) };
    let sources = if sources.is_empty() { configured } else { sources };
    let is_dataset = mount_point.is_file() || is_zarr(mount_point) || holds_molecules(mount_point);
    if is_dataset {
        return Err(usage(format!(
            "{0}: the last argument is the mount point; {0} is a dataset",
            mount_point.display()
        )));
    }
    if sources.is_empty() {
        return Err(usage(format!(
            "{}: the last argument is the mount point; name the dataset before it",
            mount_point.display()
        )));
    }
    if let Some(source) = sources.iter().find(|s| same_place(s, mount_point)) {
        return Err(usage(format!("{}: is both a source and the mount point", source.display())));
    }
    Ok((Sources::resolve(sources, &std::env::current_dir()?)?, mount_point.clone()))
}

fn usage(reason: String) -> anyhow::Error {
    UsageError { option: "SOURCE... MNT".into(), reason }.into()
}

/// An existing directory of `.atp` files. Nobody mounts over one, and a mount point that answers no more is not asked.
fn holds_molecules(path: &Path) -> bool {
    path.read_dir()
        .is_ok_and(|mut entries| entries.any(|e| e.is_ok_and(|e| e.path().extension().is_some_and(|x| x == "atp"))))
}
