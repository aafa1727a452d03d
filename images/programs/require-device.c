/* require-device KIND PROGRAM [ARGUMENT]...: becomes PROGRAM if a device of that kind is there, else exits 3.
 *
 * llama-server without a usable GPU serves on the CPU and says so in one log line only. This asks
 * `PROGRAM --list-devices` first and refuses. `--allow-cpu` among the arguments (it is taken out) or
 * HALOFORGE_ALLOW_CPU=1 turns the refusal into a warning. The program is exec'ed: it stays process 1. */
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 60 };
static pid_t child;

static void too_late(int number) {
    (void)number;
    kill(child, SIGKILL);
}

/* Whether the output names a device, "KIND0: ..."; copies what was printed to `said`. */
static int has_device(const char *program, const char *kind, char *said, size_t room) {
    int ends[2];
    if (pipe(ends) != 0) return 0;
    child = fork();
    if (child < 0) return 0;
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        execl(program, program, "--list-devices", (char *)NULL);
        perror(program);
        _exit(127);
    }
    close(ends[1]);
    signal(SIGALRM, too_late);
    alarm(SECONDS);
    FILE *output = fdopen(ends[0], "r");
    char line[1024];
    int found = 0;
    while (output && fgets(line, sizeof line, output)) {
        const char *word = line + strspn(line, " \t");
        size_t length = strlen(kind);
        if (strncmp(word, kind, length) == 0 && isdigit((unsigned char)word[length])) found = 1;
        if (strlen(said) + strlen(line) + 14 < room) strcat(strcat(said, "          "), line);
    }
    if (output) fclose(output);
    int status = 0;
    waitpid(child, &status, 0);
    if (alarm(0) == 0 && WIFSIGNALED(status)) strcat(said, "          (it hung and was ended)\n");
    return found && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Arguments that only print something need no device. */
static int only_prints(const char *argument) {
    static const char *const known[] = {"--version", "--help", "-h", "--usage", "--list-devices", NULL};
    for (int i = 0; known[i]; i++)
        if (strcmp(argument, known[i]) == 0) return 1;
    return 0;
}

int main(int count, char **words) {
    if (count < 3) {
        fputs("usage: require-device KIND PROGRAM [ARGUMENT]...\n", stderr);
        return 2;
    }
    const char *allowed = getenv("HALOFORGE_ALLOW_CPU");
    int allow = allowed && strcmp(allowed, "1") == 0, prints = 0, kept = 2;
    for (int i = 2; i < count; i++) {
        prints |= only_prints(words[i]);
        if (strcmp(words[i], "--allow-cpu") == 0) allow = 1;
        else words[kept++] = words[i];
    }
    words[kept] = NULL;
    static char said[8192];
    if (!prints && !has_device(words[2], words[1], said, sizeof said)) {
        fprintf(stderr, "%s: this image is for a %s device and there is none\n", allow ? "warning" : "error", words[1]);
        fprintf(stderr, "  why:  %s --list-devices said\n%s", words[2], said);
        if (!allow) {
            fputs("  next: pass the device nodes (/dev/kfd and /dev/dri) and their group numbers to the container,\n"
                  "        or add --allow-cpu to serve on the CPU knowingly\n", stderr);
            return 3;
        }
    }
    execv(words[2], words + 2);
    perror(words[2]);
    return 127;
}
