/* An empty library with the name of one of CANN. It needs libascendcl.so, so looking up a
 * name in it finds what that library defines. */
static const char kind[] __attribute__((used)) = "ems.simulator: forwards to libascendcl.so";
