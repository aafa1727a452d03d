/* haloforge-guard: runs the server as its child and stops it before the host runs out of memory.
 *
 * Why: what the GPU of an APU allocates (GTT) counts in no cgroup and in no process's resident set, so
 * neither a container's memory limit nor the kernel's OOM killer sees who took it. Only MemAvailable of
 * the host falls, and /proc/meminfo inside a container is the host's.
 *
 * haloforge-guard --stop-below-mib N --start-above-mib M -- PROGRAM ARGUMENT...
 *   waits until MemAvailable >= M, starts PROGRAM, kills it when MemAvailable < N (MiB = 2^20 bytes).
 * Ends with the program's own code, with 128+N where signal N ended it, with 75 (a failure that may pass,
 * so that a restart policy starts anew) after stopping it, with 64 on wrong usage, 127 if it cannot start.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STOPPED = 75, USAGE = 64, CANNOT_START = 127, POLL_MS = 100, WAIT_REPORT_MS = 10000 };

static const int forwarded[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2};
static const size_t n_forwarded = sizeof forwarded / sizeof *forwarded;

/* MemAvailable in MiB, or -1. No buffered reads: the file must be read anew, and memory may be short. */
static long available_mib(void) {
    char text[4096];
    int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return -1;
    text[got] = '\0';
    const char *line = strstr(text, "MemAvailable:");
    long kib;
    return line != NULL && sscanf(line, "MemAvailable: %ld kB", &kib) == 1 ? kib / 1024 : -1;
}

static void require_meminfo(void) {
    if (available_mib() >= 0) return;
    fprintf(stderr, "haloforge-guard: no MemAvailable in /proc/meminfo, so memory cannot be guarded\n");
    exit(CANNOT_START);
}

/* Sleeps one poll, or until a child ends or a signal to forward comes; returns that signal or 0. */
static int poll_once(const sigset_t *set) {
    const struct timespec pause = {0, POLL_MS * 1000000L};
    int got = sigtimedwait(set, NULL, &pause);
    return got > 0 ? got : 0;
}

static void wait_for_memory(long above, const sigset_t *set) {
    for (long waited = 0, now; (now = available_mib()) < above; waited += POLL_MS) {
        if (waited % WAIT_REPORT_MS == 0)
            fprintf(stderr, "haloforge-guard: waiting for memory: %ld MiB available, %ld MiB needed\n", now, above);
        int got = poll_once(set);
        if (got != 0 && got != SIGCHLD) exit(128 + got);
    }
}

static void become(char **argv, const sigset_t *old, pid_t guard) {
    sigprocmask(SIG_SETMASK, old, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guard) _exit(CANNOT_START);
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "1000", 4) != 4)
        fprintf(stderr, "haloforge-guard: oom_score_adj stays as it was: %s\n", strerror(errno));
    if (fd >= 0) close(fd);
    execvp(argv[0], argv);
    fprintf(stderr, "haloforge-guard: cannot start %s: %s\n", argv[0], strerror(errno));
    _exit(CANNOT_START);
}

/* Takes in every child that has ended (as PID 1 also orphans); true and its status once the server is one. */
static int has_ended(pid_t server, int *status) {
    int one;
    for (pid_t pid; (pid = waitpid(-1, &one, WNOHANG)) > 0;)
        if (pid == server) {
            *status = one;
            return 1;
        }
    return 0;
}

static int verdict(int status) {
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    fprintf(stderr, "haloforge-guard: the server was ended by signal %d (%s), not by the guard\n",
            WTERMSIG(status), strsignal(WTERMSIG(status)));
    return 128 + WTERMSIG(status);
}

static int watch(pid_t server, long below, const sigset_t *set) {
    for (int status;;) {
        if (has_ended(server, &status)) return verdict(status);
        long now = available_mib();
        if (now >= 0 && now < below) {
            kill(server, SIGKILL);
            while (waitpid(server, &status, 0) < 0 && errno == EINTR) continue;
            fprintf(stderr, "haloforge-guard: stopped the server: MemAvailable %ld MiB is below %ld MiB\n", now, below);
            return STOPPED;
        }
        int got = poll_once(set);
        if (got != 0 && got != SIGCHLD) kill(server, got);
    }
}

static long mib(const char *text) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return errno != 0 || *end != '\0' || end == text || value < 0 ? -1 : value;
}

int main(int argc, char **argv) {
    long below = -1, above = -1;
    int i = 1;
    for (; i + 1 < argc && strcmp(argv[i], "--") != 0; i += 2) {
        if (strcmp(argv[i], "--stop-below-mib") == 0) below = mib(argv[i + 1]);
        else if (strcmp(argv[i], "--start-above-mib") == 0) above = mib(argv[i + 1]);
        else break;
    }
    if (below < 0 || above < 0 || i + 1 >= argc || strcmp(argv[i], "--") != 0) {
        fprintf(stderr, "usage: haloforge-guard --stop-below-mib N --start-above-mib M -- PROGRAM ARGUMENT...\n");
        return USAGE;
    }
    require_meminfo();
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t k = 0; k < n_forwarded; k++) sigaddset(&set, forwarded[k]);
    sigprocmask(SIG_BLOCK, &set, &old);
    wait_for_memory(above, &set);
    const pid_t self = getpid();
    const pid_t server = fork();
    if (server == 0) become(argv + i + 1, &old, self);
    if (server < 0) {
        fprintf(stderr, "haloforge-guard: cannot fork: %s\n", strerror(errno));
        return CANNOT_START;
    }
    return watch(server, below, &set);
}
