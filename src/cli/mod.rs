//! What was typed, made into a validated configuration, and run.
//!
//! [`args`] is what can be typed; [`options`] what is meant; [`dataset`] opens everything and refuses what can be refused; [`commands`]
//! has one function per subcommand. Errors end here: one line on stderr that names the file, the element, the reason
//! and the way out, and an exit code.

pub mod args;
mod commands;
pub mod dataset;
mod describe;
mod memory;
mod molecules;
pub mod options;
mod readme;
pub mod text;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command, DatasetArgs};
use options::UsageError;

/// Parses the command line, runs the command, and returns its exit code: 0 done, 1 run-time failure, 2 usage.
#[must_use]
pub fn main() -> ExitCode {
    let words = match args::expand_fstab(std::env::args_os()) {
        Ok(words) => words,
        Err(reason) => return fail(2, &reason),
    };
    // Prints help and usage errors itself, with exit code 2 for the latter.
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let result = match cli.command {
        Command::Mount(args) => commands::mount::run(args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Cat(args) => commands::cat::run(args),
        Command::Export(args) => commands::export::run(args),
        Command::Status(args) => commands::status::run(&args),
        Command::Bench(args) => commands::bench::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => fail(if error.downcast_ref::<UsageError>().is_some() { 2 } else { 1 }, &text::chain(&error)),
    }
}

fn fail(code: u8, message: &str) -> ExitCode {
    // One line, whatever a file put into the message.
    eprintln!("shufflefs: {}", message.replace(['\n', '\r'], " "));
    ExitCode::from(code)
}

/// Whoever read our output has seen enough: not a failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The options, completed from the `--config` file if there is one.
fn with_config(args: DatasetArgs) -> anyhow::Result<DatasetArgs> {
    let Some(path) = &args.config else { return Ok(args) };
    let text = std::fs::read_to_string(path).map_err(|e| anyhow::anyhow!("--config {}: {e}", path.display()))?;
    let file: DatasetArgs = toml::from_str(&text).map_err(|e| UsageError {
        option: format!("--config {}", path.display()),
        reason: e.message().lines().next().unwrap_or("not TOML").to_owned(),
    })?;
    Ok(args.or(file))
}
