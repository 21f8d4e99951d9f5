//! The few functions of the MPI library that are used, found at run time. Open MPI only: its handles
//! are addresses of objects that it exports. Other libraries have other handles.

use std::ffi::{c_int, c_void};

use super::MpiError;

/// Where Open MPI's library may be, the most exact name first. Version 40 is that of Open MPI 4 and 5.
#[cfg(target_os = "macos")]
const NAMES: &[&str] = &["libmpi.40.dylib", "libmpi.dylib"];
#[cfg(not(target_os = "macos"))]
const NAMES: &[&str] = &["libmpi.so.40", "libmpi.so"];

type Handle = *mut c_void;

/// `MPI_SUCCESS`, `MPI_ANY_SOURCE` and `MPI_THREAD_SERIALIZED` of Open MPI's `mpi.h`.
const SUCCESS: c_int = 0;
const ANY_SOURCE: c_int = -1;
const SERIALIZED: c_int = 2;

/// Room for an `MPI_Status`, which is 24 bytes in Open MPI.
type Status = [u64; 8];

struct Functions {
    init_thread: unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int,
    initialized: unsafe extern "C" fn(*mut c_int) -> c_int,
    set_errhandler: unsafe extern "C" fn(Handle, Handle) -> c_int,
    comm_rank: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    comm_size: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    isend: unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int,
    test: unsafe extern "C" fn(*mut Handle, *mut c_int, *mut Status) -> c_int,
    iprobe: unsafe extern "C" fn(c_int, c_int, Handle, *mut c_int, *mut Status) -> c_int,
    get_count: unsafe extern "C" fn(*const Status, Handle, *mut c_int) -> c_int,
    recv: unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Status) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
}

/// MPI, started.
pub(super) struct Library {
    functions: Functions,
    /// `MPI_COMM_WORLD` and `MPI_BYTE`.
    world_comm: Handle,
    byte: Handle,
    rank: u32,
    world: u32,
    /// Keeps the functions where they are.
    _library: libloading::Library,
}

// SAFETY: MPI is started for use by any thread, one at a time, and a `Library` has one owner.
unsafe impl Send for Library {}

/// A message on its way. MPI reads it until it is sent.
pub(super) struct Sending {
    request: Handle,
    _message: Vec<u8>,
}

// SAFETY: only used together with the library, by one thread at a time.
unsafe impl Send for Sending {}

/// A message that can be received now.
pub(super) struct Incoming {
    source: c_int,
    tag: c_int,
    len: c_int,
}

fn missing(why: String) -> MpiError {
    MpiError {
        message: format!("no MPI library was found: {why}"),
        help: Some(
            "install Open MPI (Debian: `openmpi-bin`), or run ranks as threads: `tg run --world 4`".into(),
        ),
    }
}

fn open() -> Result<libloading::Library, MpiError> {
    let mut why = String::new();
    for name in NAMES {
        match load(name) {
            Ok(library) => return Ok(library),
            Err(error) => why = error.to_string(),
        }
    }
    Err(missing(why))
}

/// Open MPI's plug-ins look for its symbols among the global ones.
#[cfg(unix)]
fn load(name: &str) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: the initialisers of an MPI library do nothing before `MPI_Init`.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }.map(Into::into)
}

#[cfg(not(unix))]
fn load(name: &str) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: the initialisers of an MPI library do nothing before `MPI_Init`.
    unsafe { libloading::Library::new(name) }
}

/// # Safety
/// `T` is the type that the symbol has in `mpi.h`.
unsafe fn symbol<T: Copy>(library: &libloading::Library, name: &str) -> Result<T, MpiError> {
    // SAFETY: as for this function.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| MpiError {
        message: format!("the MPI library has no `{name}`: it is not Open MPI"),
        help: Some("`--engine mpi` works with Open MPI 4 and 5".into()),
    })
}

impl Library {
    /// Finds and starts MPI.
    pub fn start() -> Result<Library, MpiError> {
        let library = open()?;
        // SAFETY: the types are those of Open MPI's `mpi.h`; exported objects are used by address.
        let (functions, world_comm, byte, errors_return) = unsafe {
            let functions = Functions {
                init_thread: symbol(&library, "MPI_Init_thread")?,
                initialized: symbol(&library, "MPI_Initialized")?,
                set_errhandler: symbol(&library, "MPI_Comm_set_errhandler")?,
                comm_rank: symbol(&library, "MPI_Comm_rank")?,
                comm_size: symbol(&library, "MPI_Comm_size")?,
                isend: symbol(&library, "MPI_Isend")?,
                test: symbol(&library, "MPI_Test")?,
                iprobe: symbol(&library, "MPI_Iprobe")?,
                get_count: symbol(&library, "MPI_Get_count")?,
                recv: symbol(&library, "MPI_Recv")?,
                finalize: symbol(&library, "MPI_Finalize")?,
            };
            // Handles are the addresses of exported objects, and an address is what a symbol is.
            let address = |name| symbol::<Handle>(&library, name);
            (
                functions,
                address("ompi_mpi_comm_world")?,
                address("ompi_mpi_byte")?,
                address("ompi_mpi_errors_return")?,
            )
        };
        let mut this = Library { functions, world_comm, byte, rank: 0, world: 1, _library: library };
        this.init(errors_return).map_err(|text| MpiError { message: text, help: None })?;
        Ok(this)
    }

    fn init(&mut self, errors_return: Handle) -> Result<(), String> {
        let f = &self.functions;
        let (mut is_up, mut provided, mut rank, mut world) = (0, 0, 0, 1);
        // SAFETY: out-parameters are alive; no arguments are passed on.
        unsafe {
            check("MPI_Initialized", (f.initialized)(&mut is_up))?;
            if is_up != 0 {
                return Err("MPI is started already in this process".into());
            }
            let none = std::ptr::null_mut();
            check("MPI_Init_thread", (f.init_thread)(none, none.cast(), SERIALIZED, &mut provided))?;
            if provided < SERIALIZED {
                return Err("this MPI cannot be used from more than one thread".into());
            }
            check("MPI_Comm_set_errhandler", (f.set_errhandler)(self.world_comm, errors_return))?;
            check("MPI_Comm_rank", (f.comm_rank)(self.world_comm, &mut rank))?;
            check("MPI_Comm_size", (f.comm_size)(self.world_comm, &mut world))?;
        }
        self.rank = u32::try_from(rank).map_err(|_| "MPI gave a negative rank")?;
        self.world = u32::try_from(world).map_err(|_| "MPI gave a negative number of ranks")?;
        Ok(())
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn world(&self) -> u32 {
        self.world
    }

    pub fn send(&self, to: u32, tag: i32, message: Vec<u8>) -> Result<Sending, String> {
        let len = c_int::try_from(message.len()).map_err(|_| "a message beyond 2 GiB")?;
        let mut request = std::ptr::null_mut();
        // SAFETY: the message stays where it is until the request is complete (`Sending`).
        let code = unsafe {
            let start = message.as_ptr().cast();
            (self.functions.isend)(start, len, self.byte, to as c_int, tag, self.world_comm, &mut request)
        };
        check("MPI_Isend", code)?;
        Ok(Sending { request, _message: message })
    }

    pub fn is_sent(&self, sending: &mut Sending) -> Result<bool, String> {
        let (mut done, mut status) = (0, Status::default());
        // SAFETY: a request of this library; complete ones become null, which tests as complete.
        check("MPI_Test", unsafe { (self.functions.test)(&mut sending.request, &mut done, &mut status) })?;
        Ok(done != 0)
    }

    /// Whether a message with this tag has come, from a rank or from any.
    pub fn probe(&self, from: Option<u32>, tag: i32) -> Result<Option<Incoming>, String> {
        let source = from.map_or(ANY_SOURCE, |rank| rank as c_int);
        let (mut found, mut len, mut status) = (0, 0, Status::default());
        // SAFETY: out-parameters are alive, and a status is smaller than `Status`.
        unsafe {
            let f = &self.functions;
            check("MPI_Iprobe", (f.iprobe)(source, tag, self.world_comm, &mut found, &mut status))?;
            if found == 0 {
                return Ok(None);
            }
            check("MPI_Get_count", (f.get_count)(&status, self.byte, &mut len))?;
        }
        // Failures may come from any rank: what is received next has this tag, and is one of them.
        Ok(Some(Incoming { source, tag, len }))
    }

    /// Receives what was found; it is there, so this does not wait for another rank.
    pub fn receive(&self, incoming: Incoming) -> Result<Vec<u8>, String> {
        let Incoming { source, tag, len } = incoming;
        let mut message = vec![0; usize::try_from(len).map_err(|_| "MPI gave a negative length")?];
        let mut status = Status::default();
        // SAFETY: the buffer has the length of the message.
        let code = unsafe {
            let start = message.as_mut_ptr().cast();
            (self.functions.recv)(start, len, self.byte, source, tag, self.world_comm, &mut status)
        };
        check("MPI_Recv", code)?;
        Ok(message)
    }

    /// Ends MPI, together with all ranks.
    pub fn close(&self) -> Result<(), String> {
        // SAFETY: called once, at the end.
        check("MPI_Finalize", unsafe { (self.functions.finalize)() })
    }
}

fn check(name: &str, code: c_int) -> Result<(), String> {
    if code == SUCCESS { Ok(()) } else { Err(format!("`{name}` failed with code {code}")) }
}
