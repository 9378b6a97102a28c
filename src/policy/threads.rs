//! The threads that compile and evaluate. Each has its own compiled programs, so that none is ever dropped on a small
//! stack.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use cel::Env;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::cache::Cache;
use super::program::Program;
use super::{Input, Question, Roots};
use crate::run::policy::Found;

/// Address space for the stack of each thread; what is not used costs nothing.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// One piece of work.
#[derive(Debug)]
pub(super) struct Job {
    /// Nobody waits for it any longer.
    pub(super) until: Instant,
    pub(super) work: Work,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Work {
    /// Compile, and say what is wrong.
    Check { sources: Vec<(String, Roots)>, answer: oneshot::Sender<Vec<Option<String>>> },
    /// Evaluate.
    Judge { questions: Vec<Question>, input: Input, answer: oneshot::Sender<Vec<Found>> },
}

/// Starts as many threads as there are cores, two to four.
pub(super) fn start(queue: mpsc::Receiver<Job>) -> io::Result<()> {
    let queue = Arc::new(Mutex::new(queue));
    let count = thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4));
    for number in 0..count {
        let queue = Arc::clone(&queue);
        thread::Builder::new()
            .name(format!("expressions-{number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || work(&queue))?;
    }
    Ok(())
}

fn work(queue: &Mutex<mpsc::Receiver<Job>>) {
    let mut worker = Worker::new();
    loop {
        // Only this one waits for the next job; the others wait for their turn to.
        let next = queue.lock().blocking_recv();
        let Some(job) = next else { return };
        // The library must not take a thread away from everybody.
        if catch_unwind(AssertUnwindSafe(|| worker.carry_out(job))).is_err() {
            tracing::error!("evaluating an expression panicked");
            worker = Worker::new();
        }
    }
}

struct Worker {
    env: Arc<Env>,
    programs: Cache<Result<Arc<Program>, String>>,
}

impl Worker {
    fn new() -> Self {
        // Optional values would be a second way to say that a field is missing.
        Self { env: Arc::new(Env::stdlib().with_optional_support(false)), programs: Cache::default() }
    }

    fn carry_out(&mut self, job: Job) {
        match job.work {
            Work::Check { sources, answer } => {
                let mut faults = Vec::with_capacity(sources.len());
                for (source, roots) in sources {
                    if answer.is_closed() || Instant::now() > job.until {
                        return;
                    }
                    let compiled = self.program(&source);
                    faults.push(compiled.and_then(|program| program.looks_only_at(roots)).err());
                }
                // Whoever asked may have stopped waiting.
                drop(answer.send(faults));
            }
            Work::Judge { questions, input, answer } => {
                let mut found = Vec::with_capacity(questions.len());
                for question in questions {
                    if answer.is_closed() || Instant::now() > job.until {
                        return;
                    }
                    found.push(match self.program(&question.when) {
                        Ok(program) => program.evaluate(&self.env, &input, question.trigger),
                        Err(fault) => Found::Failed(fault),
                    });
                }
                drop(answer.send(found));
            }
        }
    }

    fn program(&mut self, source: &str) -> Result<Arc<Program>, String> {
        let env = &self.env;
        self.programs.get_or(source, || Program::compile(env, source).map(Arc::new))
    }
}
