/* sluice-loader: a loader of the data plane, or with --scan the process that reads the data set
 * once. Started by the coordinator, never by hand. */
#include "loader/loop.h"
#include "loader/scan.h"

#include <string.h>

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--scan") == 0)
            return scan_main(argc, argv);
    return loader_run(argc, argv);
}
