//! What was typed, made into a validated configuration, and run.

/// Parses the command line, runs the command, and returns its exit code: 0 done, 1 run-time failure, 2 usage.
#[must_use]
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
