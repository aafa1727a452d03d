/* health: exit 0 when the llama-server of this container answers 200 on /health, else 1 with the reason.
 *
 * It asks where the server listens: the command line of process 1 (--host, --port, --api-prefix), else the
 * variables LLAMA_ARG_HOST, LLAMA_ARG_PORT and LLAMA_ARG_API_PREFIX, else port 8080. So the check follows the
 * configuration, and the image needs no shell and no HTTP client for it. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static char command_line[1 << 16];
static size_t command_length;

static void read_command_line(void) {
    FILE *file = fopen("/proc/1/cmdline", "r");
    if (!file) return;
    command_length = fread(command_line, 1, sizeof command_line - 1, file);
    fclose(file);
}

/* The value of an option: the last one given counts, and the command line wins over the environment. */
static const char *option(const char *flag, const char *variable, const char *otherwise) {
    const char *found = getenv(variable), *end = command_line + command_length;
    if (!found || !*found) found = otherwise;
    for (const char *word = command_line; word < end; word += strlen(word) + 1) {
        const char *next = word + strlen(word) + 1;
        if (strcmp(word, flag) == 0 && next < end) found = next;
    }
    return found;
}

static int connect_to(const char *host, const char *port) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list, *at;
    const struct timeval limit = {.tv_sec = 4};
    int fd = -1;
    if (getaddrinfo(host, port, &hints, &list) != 0) return -1;
    for (at = list; at; at = at->ai_next) {
        fd = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(fd, at->ai_addr, at->ai_addrlen) == 0) break;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

int main(void) {
    read_command_line();
    const char *host = option("--host", "LLAMA_ARG_HOST", "127.0.0.1");
    const char *port = option("--port", "LLAMA_ARG_PORT", "8080");
    const char *prefix = option("--api-prefix", "LLAMA_ARG_API_PREFIX", "");
    if (strcmp(host, "0.0.0.0") == 0) host = "127.0.0.1";
    if (strcmp(host, "::") == 0) host = "::1";

    int fd = connect_to(host, port);
    if (fd < 0) {
        printf("nothing listens on %s port %s\n", host, port);
        return 1;
    }
    char request[1024], answer[512];
    int length = snprintf(request, sizeof request, "GET %s/health HTTP/1.0\r\nHost: %s\r\n\r\n", prefix, host);
    if (length >= (int)sizeof request || write(fd, request, (size_t)length) != length) {
        puts("the request could not be sent");
        return 1;
    }
    size_t got = 0;
    for (ssize_t more = 1; more > 0 && got < sizeof answer - 1 && !memchr(answer, '\n', got);) {
        more = read(fd, answer + got, sizeof answer - 1 - got);
        if (more > 0) got += (size_t)more;
    }
    close(fd);
    answer[got] = '\0';
    answer[strcspn(answer, "\r\n")] = '\0';
    puts(got ? answer : "no answer within 4 s");
    return strncmp(answer, "HTTP/1.", 7) == 0 && strncmp(answer + 8, " 200", 4) == 0 ? 0 : 1;
}
