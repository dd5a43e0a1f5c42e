/* Holds a Pod's namespaces open: waits to be told to end, and reaps what is left to it. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void down(int signal_number) { (void)signal_number; _exit(0); }
static void reap(int signal_number) { (void)signal_number; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(void) {
  signal(SIGINT, down);
  signal(SIGTERM, down);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
