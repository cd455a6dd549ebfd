import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.internals.Plugin;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;

/**
 * Decisions of Kafka's StandardAuthorizer. Each line of the input has fields separated by tabs:
 *
 *   new
 *   add TYPE PATTERN NAME PRINCIPAL HOST OPERATION PERMISSION    (numbers of Kafka's enums)
 *   ask PRINCIPAL HOST OPERATION TYPE NAME                       answered by ALLOWED or DENIED
 *                                                                (NAME with \\n for a line end)
 */
public class KafkaAuthorizer {
    record Context(KafkaPrincipal principal, InetAddress clientAddress)
            implements AuthorizableRequestContext {
        public String listenerName() { return "CLIENTS"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.SSL; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return ""; }
        public int correlationId() { return 0; }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        StandardAuthorizer authorizer = null;
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] at = line.split("\t", -1);
            if (at[0].equals("new")) {
                authorizer = new StandardAuthorizer();
                authorizer.configure(Map.of("super.users", "", "node.id", "1"));
                Plugin.wrapInstance(authorizer, new Metrics(), "authorizer.class.name");
                authorizer.completeInitialLoad();
            } else if (at[0].equals("add")) {
                authorizer.addAcl(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.fromCode(Byte.parseByte(at[1])), at[3],
                    PatternType.fromCode(Byte.parseByte(at[2])), at[4], at[5],
                    AclOperation.fromCode(Byte.parseByte(at[6])),
                    AclPermissionType.fromCode(Byte.parseByte(at[7]))));
            } else {
                String[] principal = at[1].split(":", 2);
                Action action = new Action(AclOperation.fromCode(Byte.parseByte(at[3])),
                    new ResourcePattern(ResourceType.fromCode(Byte.parseByte(at[4])),
                        at[5].replace("\\n", "\n"),
                        PatternType.LITERAL), 1, false, false);
                Context context = new Context(
                    new KafkaPrincipal(principal[0], principal[1]), InetAddress.getByName(at[2]));
                out.append(authorizer.authorize(context, List.of(action)).get(0)).append('\n');
            }
        }
        System.out.print(out);
    }
}
