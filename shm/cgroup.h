/* Where this process's control groups lie: every folder whose limits bind it.
 *
 * A container's limit may sit on any ancestor, and in cgroup v1 each controller is a hierarchy of
 * its own; a container often sees only a part of it, mounted somewhere. Any process, any thread.
 */
#ifndef SLUICE_SHM_CGROUP_H
#define SLUICE_SHM_CGROUP_H

enum { CGROUP_PATH = 4096 };

/* Calls visit for every folder of the process's group in a hierarchy, from its own up to the
 * hierarchy's root or as far as it is mounted here. controller: a v1 controller ("memory", "cpu",
 * "pids"), or NULL for v2's one hierarchy. root is "" for the live system; tests pass a folder with
 * recorded files. Folders may be missing: visit looks into files and takes what is there. */
void cgroup_each(const char *root, const char *controller,
                 void (*visit)(const char *folder, void *user), void *user);

#endif
