import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.Optional;
import kafka.server.ClientRequestQuotaManager;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import org.apache.kafka.server.quota.ClientQuotaEntity;
import org.apache.kafka.server.quota.ClientQuotaManager;
import org.apache.kafka.server.quota.QuotaType;

/**
 * Throttle times of Kafka's own quota managers. Each line of the input has fields separated by tabs:
 *
 *   new TYPE                         PRODUCE or REQUEST
 *   set USER CLIENT LIMIT            '*': the default, '-': absent
 *   record USER CLIENT VALUE TIME    answered by the throttle time in milliseconds
 *   unrecord USER CLIENT VALUE TIME
 *   max USER CLIENT                  answered by the largest value that is not throttled
 */
public class KafkaQuotas {
    static Optional<ClientQuotaEntity.ConfigEntity> user(String name) {
        if (name.equals("-")) return Optional.empty();
        return Optional.of(name.equals("*")
            ? ClientQuotaManager.DEFAULT_USER_ENTITY : new ClientQuotaManager.UserEntity(name));
    }

    static Optional<ClientQuotaEntity.ConfigEntity> client(String name) {
        if (name.equals("-")) return Optional.empty();
        return Optional.of(name.equals("*")
            ? ClientQuotaManager.DEFAULT_USER_CLIENT_ID : new ClientQuotaManager.ClientIdEntity(name));
    }

    static ClientQuotaManager manager(String type) {
        ClientQuotaManagerConfig config = new ClientQuotaManagerConfig();
        return type.equals("REQUEST")
            ? new ClientRequestQuotaManager(config, new Metrics(), Time.SYSTEM, "", Optional.empty())
            : new ClientQuotaManager(config, new Metrics(), QuotaType.valueOf(type), Time.SYSTEM, "");
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        InetAddress host = InetAddress.getLoopbackAddress();
        ClientQuotaManager manager = null;
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] at = line.split("\t", -1);
            if (at[0].equals("new")) {
                if (manager != null) manager.initiateShutdown();
                manager = manager(at[1]);
                continue;
            }
            if (at[0].equals("set")) {
                Quota quota = Quota.upperBound(Double.parseDouble(at[3]));
                manager.updateQuota(user(at[1]), client(at[2]), Optional.of(quota));
                continue;
            }
            Session session = new Session(new KafkaPrincipal("User", at[1]), host);
            if (at[0].equals("max")) {
                out.append(manager.maxValueInQuotaWindow(session, at[2])).append('\n');
                continue;
            }
            double value = Double.parseDouble(at[3]);
            long timeMs = Long.parseLong(at[4]);
            if (at[0].equals("unrecord")) manager.unrecordQuotaSensor(session, at[2], value, timeMs);
            else out.append(
                manager.recordAndGetThrottleTimeMs(session, at[2], value, timeMs)).append('\n');
        }
        System.out.print(out);
        System.out.flush();
        System.exit(0);
    }
}
